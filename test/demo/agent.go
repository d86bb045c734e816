package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// agent is the process of `patchbay agent`, with its state in a folder of the
// demo's.
type agent struct {
	binary, socket, log string
	cmd                 *exec.Cmd
	ended               chan struct{}
	// plugins are the process ids to look after once the agent has ended.
	plugins []int
}

func startAgent(o options, dir string) (*agent, error) {
	a := &agent{
		binary: filepath.Join(o.bin, "patchbay"),
		socket: filepath.Join(dir, "patchbay.sock"),
		log:    filepath.Join(dir, "agent.log"),
		ended:  make(chan struct{}),
	}
	if _, err := os.Stat(a.binary); err != nil {
		return nil, fmt.Errorf("%w: build it first, with make build", err)
	}
	// The agent runs no plugin that others may write, as they may in a clone made
	// with a loose umask: the demo has a copy of its own.
	syscall.Umask(0o022)
	plugins := filepath.Join(dir, "plugins")
	if err := os.CopyFS(plugins, os.DirFS(filepath.Join(o.bin, "plugins"))); err != nil {
		return nil, fmt.Errorf("copying the plugins: %w", err)
	}
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	a.cmd = exec.Command(a.binary, "agent",
		"-config", o.config,
		"-data-dir", filepath.Join(dir, "data"),
		"-socket", a.socket,
		"-plugin-dir", plugins)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	// In a group of its own, so that Ctrl-C reaches the demo alone, which ends
	// it in order; should the demo be killed, the agent ends too.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the agent: %w", err)
	}
	go func() {
		_ = a.cmd.Wait() // its log says why it ended
		close(a.ended)
	}()
	return a, nil
}

// alive tells whether the agent runs.
func (a *agent) alive() bool {
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// stop ends the agent and, with it, its plugins, and sees to it that they are
// gone.
func (a *agent) stop() error {
	_ = a.cmd.Process.Signal(os.Interrupt)
	select {
	case <-a.ended:
	case <-time.After(20 * time.Second):
		_ = a.cmd.Process.Kill()
		<-a.ended
		return errors.New("the agent did not end within 20 s of an interrupt, and was killed")
	}
	for _, pid := range a.plugins {
		if !goneSoon(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return fmt.Errorf("the plugin with process id %d outlived the agent, and was killed", pid)
		}
	}
	return nil
}

func goneSoon(pid int) bool {
	for range 200 {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		time.Sleep(25 * time.Millisecond)
	}
	return false
}

// logTail gives the last lines of the agent's log.
func (a *agent) logTail() string {
	log, err := os.ReadFile(a.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
}
