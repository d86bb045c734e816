package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/config"
)

// asking is what every command that asks an agent has: the socket's flag.
type asking struct{ socket string }

func addSocket(cmd *cobra.Command) *asking {
	a := &asking{}
	cmd.Flags().StringVar(&a.socket, "socket", "", "the agent's socket `path` (default $PATCHBAY_SOCKET"+orElse(defaultSocket())+")")
	return a
}

// path of the socket: the flag, the environment, or the default.
func (a *asking) path() string {
	switch {
	case a.socket != "":
		return a.socket
	case os.Getenv("PATCHBAY_SOCKET") != "":
		return os.Getenv("PATCHBAY_SOCKET")
	}
	return defaultSocket()
}

// answerTime is how long an agent may take for an answer: a plan or a reload
// may start plugins to ask them.
const answerTime = 5 * time.Minute

// ask calls do with a client, for one answer; Ctrl-C ends the context.
func (a *asking) ask(cmd *cobra.Command, do func(ctx context.Context, client *admin.Client) error) error {
	return a.follow(cmd, func(ctx context.Context, client *admin.Client) error {
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		return do(ctx, client)
	})
}

// follow is ask for as many answers as the user wants.
func (a *asking) follow(cmd *cobra.Command, do func(ctx context.Context, client *admin.Client) error) error {
	ctx, stop := signal.NotifyContext(commandContext(cmd), os.Interrupt)
	defer stop()
	client := admin.NewClient(a.path())
	defer client.Close()
	return do(ctx, client)
}

// defaultSocket is where an agent of this user listens when nobody says
// otherwise.
func defaultSocket() string { return config.DefaultPlaces(os.Geteuid()).SocketPath() }

func commandContext(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
