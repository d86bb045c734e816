package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"syscall"
	"time"

	"github.com/patchbay-proxy/patchbay/plugins/userspace/loop"
)

// startDatapath runs the data path of userspace alone, without core and
// plugin: for those who tune it.
func startDatapath(b *bench, k proxyKind, _ string) (*exec.Cmd, error) {
	return b.self("datapath", fmt.Sprint(k.port)), nil
}

func runDatapath(port string) error {
	base, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	if path := os.Getenv(profileEnv); path != "" {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	engine, err := loop.New(loop.Options{})
	if err != nil {
		return err
	}
	var services []loop.Service
	for _, l := range []struct {
		name         string
		port, server int
	}{{"request", base, serverRequest}, {"bulk", base + 2, serverBulk}} {
		s := loop.Service{ID: l.name, Retries: 1,
			Listen: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(proxyAddr), uint16(l.port))}}
		if l.port == base {
			s.ListenUDP = s.Listen
		}
		for _, a := range serverAddrs() {
			s.Endpoints = append(s.Endpoints, loop.Endpoint{
				Address: netip.AddrPortFrom(netip.MustParseAddr(a), uint16(l.server)), Weight: 1})
		}
		services = append(services, s)
	}
	for id, err := range engine.Update(services, nil) {
		return fmt.Errorf("service %s: %w", id, err)
	}
	// Until the harness ends it.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	<-ctx.Done()
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return engine.Close(ctx)
}
