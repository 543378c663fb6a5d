// Package proc runs programs beside this one, each in a process of its own.
package proc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that runs.
type Process struct {
	cmd    *exec.Cmd
	pipe   *os.File // the reading end of its standard output
	stdout *bufio.Reader
	log    *tail
	gone   chan struct{} // closed when it has ended and was waited for
}

// Start starts a program. However this process ends, the kernel ends that one.
func Start(program string, args ...string) (*Process, error) {
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, log: &tail{}, gone: make(chan struct{})}
	// Not cmd.StdoutPipe: cmd.Wait would close it before everything was read.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for %s: %w", program, err)
	}
	cmd.Stdout, cmd.Stderr = w, p.log
	p.pipe, p.stdout = r, bufio.NewReader(r)
	started := make(chan error, 1)
	go func() {
		defer close(p.gone)
		// The death signal comes when the thread ends that started the child, so
		// this thread must stay until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = w.Close() // the child has its own copy
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is ended by a signal: the status says nothing
		}
	}()
	if err := <-started; err != nil {
		p.Wait()
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// environment is this process' own, without what would set up a sidecar in
// another way than its flags say.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "LOCKSIDECAR_") || strings.HasPrefix(v, "OTEL_")
	})
}

// Self starts this program again with other arguments.
func Self(args ...string) (*Process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return Start(path, args...)
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Line reads the next line of what the program prints.
func (p *Process) Line() (string, error) {
	s, err := p.stdout.ReadString('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return "", fmt.Errorf("read what %s prints: %w\n%s", p.cmd.Path, err, p.log)
	}
	return strings.TrimSuffix(s, "\n"), nil
}

// Gone is closed when the process has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Log is the end of what it wrote to its standard error.
func (p *Process) Log() string { return p.log.String() }

// Kill ends it as kill -9 does, without waiting.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.cmd.Path, err)
	}
	return nil
}

// Wait returns when it has ended. Nothing can be read from it any more.
func (p *Process) Wait() {
	<-p.gone
	_ = p.pipe.Close() // only read from: nothing can be lost
}

// Stop asks it to end and waits; after the grace it is killed.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.cmd.Path, err)
	}
	select {
	case <-p.gone:
	case <-time.After(grace):
		if err := p.Kill(); err != nil {
			return err
		}
	}
	p.Wait()
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailBytes = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if extra := t.buf.Len() - tailBytes; extra > 0 {
		t.buf.Next(extra)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
