// Command plugin is a dataplane for the tests of pluginhost. Its file's name
// says what it does: patchbay-dataplane-BEHAVIOUR_vVERSION.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

func main() {
	p := &plugin{}
	file := strings.TrimPrefix(filepath.Base(os.Args[0]), "patchbay-dataplane-")
	p.behaviour, p.version, _ = strings.Cut(file, "_v")
	p.early()
	dataplane.Serve(p)
}

type plugin struct {
	behaviour, version string
	applied            int
}

// early is what happens before the plugin serves.
func (p *plugin) early() {
	switch p.behaviour {
	case "crash":
		fmt.Fprintln(os.Stderr, "no such table: I give up")
		os.Exit(3)
	case "panic":
		panic("out of ideas")
	case "mixed":
		if !strings.HasPrefix(p.version, "1.") {
			os.Exit(4)
		}
	case "silent":
		time.Sleep(time.Hour)
	case "garbage":
		fmt.Println("hello, I am a plugin")
		time.Sleep(time.Hour)
	case "endless":
		for {
			fmt.Print("no end of line ")
		}
	case "protocol":
		fmt.Printf("1|9|unix|%s/x|grpc|\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		time.Sleep(time.Hour)
	case "elsewhere":
		fmt.Printf("1|1|unix|/tmp/elsewhere.sock|grpc|\n")
		time.Sleep(time.Hour)
	case "grandchild":
		child := exec.Command("sleep", "3600")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
	case "family", "familycrash":
		start(&syscall.SysProcAttr{Setpgid: true})
		start(&syscall.SysProcAttr{Setsid: true})
		if p.behaviour == "familycrash" {
			os.Exit(6)
		}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "later":
		time.AfterFunc(300*time.Millisecond, func() { os.Exit(5) })
	}
}

// start starts a process that is not in the plugin's group.
func start(attributes *syscall.SysProcAttr) {
	child := exec.Command("sleep", "3600")
	child.SysProcAttr = attributes
	if err := child.Start(); err != nil {
		panic(err)
	}
}

func flood(file *os.File) {
	block := []byte(strings.Repeat(strings.Repeat("all work and no play ", 4)+"\n", 400))
	for {
		if _, err := file.Write(block); err != nil {
			panic(err)
		}
	}
}

// Describe says what the file's name says, with two exceptions.
func (p *plugin) Describe() dataplane.Description {
	d := dataplane.Description{Name: p.behaviour, Version: p.version}
	d.Capabilities.Protocols = []dataplane.Protocol{dataplane.TCP}
	d.Capabilities.Families = []dataplane.Family{dataplane.IPv4}
	d.Capabilities.FrontendKinds = []dataplane.FrontendKind{dataplane.Virtual}
	d.Capabilities.Balance = []string{dataplane.BalanceRoundRobin}
	switch p.behaviour {
	case "othername":
		d.Name = "somebody-else"
	case "otherversion":
		d.Version = "9.9.9"
	case "hangdescribe":
		time.Sleep(time.Hour)
	}
	return d
}

// Configure finds nothing in place.
func (p *plugin) Configure(context.Context, dataplane.Config) (dataplane.Adopted, error) {
	if p.behaviour == "picky" && !strings.HasPrefix(p.version, "1.") {
		return dataplane.Adopted{}, errors.New("I don't like it here any more")
	}
	if p.behaviour == "unconfigurable" {
		return dataplane.Adopted{}, errors.New("there is no such device")
	}
	if p.behaviour == "flood" {
		go flood(os.Stdout)
		go flood(os.Stderr)
	}
	dataplane.Logger().Info("configured", "answer", 42)
	return dataplane.Adopted{}, nil
}

// Apply carries nothing.
func (p *plugin) Apply(ctx context.Context, update *dataplane.Update) error {
	p.applied++
	switch {
	case p.behaviour == "hangapply":
		<-ctx.Done()
		time.Sleep(time.Hour)
	case p.behaviour == "dieapply" && p.applied == 2:
		os.Exit(7)
	case p.behaviour == "failone":
		update.Fail("b", errors.New("b is not to my taste"))
	}
	return nil
}

// Close hangs in a plugin that doesn't want to end.
func (p *plugin) Close(context.Context, dataplane.CloseMode) error {
	if p.behaviour == "stubborn" {
		time.Sleep(time.Hour)
	}
	return nil
}

// Inspect tells what the process was given.
func (p *plugin) Inspect(context.Context, string) (string, any, error) {
	var facts struct {
		Env, Args []string
		FDs       map[string]string
		SID, PID  int
		Dir       string
	}
	facts.Env, facts.Args, facts.PID = os.Environ(), os.Args, os.Getpid()
	facts.Dir, _ = os.Getwd()
	facts.SID = getsid()
	facts.FDs = map[string]string{}
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if n, _ := strconv.Atoi(e.Name()); n >= 0 {
			facts.FDs[e.Name()], _ = os.Readlink("/proc/self/fd/" + e.Name())
		}
	}
	return "facts", facts, err
}

func getsid() int {
	sid, _, _ := syscall.Syscall(syscall.SYS_GETSID, 0, 0, 0)
	return int(sid)
}
