// Package stage starts the sidecars and the processes of an example, and kills them.
package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience is for everything that must happen, however busy the machine is.
const patience = 30 * time.Second

// Stage is where an example plays: a store, and sidecars on it.
type Stage struct {
	Dir string // for files of the example; short, as sockets need it

	ctx   context.Context
	serve []string
}

// Open makes a stage on the store of that URL. The sidecars' leases last a second, so that a
// sidecar that is killed holds up its locks no longer. End it with Close.
func Open(ctx context.Context, store, namespace string) (*Stage, error) {
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		return nil, err
	}
	return &Stage{Dir: dir, ctx: ctx, serve: []string{
		"serve", "--store", store, "--namespace", namespace, "--ttl", "1s", "--drain", "1s", "--log-level", "error",
	}}, nil
}

// Close removes the files. The processes were ended before.
func (s *Stage) Close() error { return os.RemoveAll(s.Dir) }

// Binary is the program locksidecar.
func Binary() (string, error) {
	if path := os.Getenv("LOCKSIDECAR_BINARY"); path != "" {
		return path, nil
	}
	return exec.LookPath("locksidecar")
}

// Sidecar starts a sidecar, and returns when apps can connect. A sidecar of the same name that
// was killed is replaced.
func (s *Stage) Sidecar(name string) (*Process, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	socket := s.Socket(name)
	p, err := s.Start(nil, binary, append(s.serve, "--name", name, "--socket", socket)...)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		c, err := (&net.Dialer{}).DialContext(s.ctx, "unix", socket)
		if err == nil {
			return p, c.Close()
		}
		if p.Ended() || time.Now().After(end) {
			p.Kill()
			return nil, fmt.Errorf("the sidecar %s does not start: %w", name, err)
		}
	}
}

// Socket is where the sidecar of that name listens.
func (s *Stage) Socket(name string) string { return filepath.Join(s.Dir, name) }

// Process is a running process.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid when exited is closed
}

// Start starts a process, whose output is that of the example.
func (s *Stage) Start(env []string, path string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.CommandContext(s.ctx, path, args...), exited: make(chan struct{})} //nolint:gosec // the examples' own programs
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LOCKSIDECAR_") {
			p.cmd.Env = append(p.cmd.Env, e)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// Kill kills the process as kill -9 does, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

// Stop ends the process as it should be ended.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.Kill()
	}
}

// Ended says whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Status is the exit status of a process, for whose end it waits; -1: a signal has ended it.
func (p *Process) Status() int {
	<-p.exited
	var exit *exec.ExitError
	if p.err == nil || errors.As(p.err, &exit) {
		return p.cmd.ProcessState.ExitCode()
	}
	return -1
}
