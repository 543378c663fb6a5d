package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience is for everything that must happen, however busy the machine is.
const patience = time.Minute

// process is a program that runs.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   string        // the file with what it has printed
	gone  chan struct{} // closed when it has ended and was waited for
	err   error         // how it ended; valid when gone is closed
}

// launch starts a program that writes to the end of a log. However this process ends,
// the kernel ends that one.
func launch(log string, env []string, path string, args ...string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{cmd: exec.CommandContext(context.Background(), path, args...), log: log, gone: make(chan struct{})}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "LOCKSIDECAR_") || strings.HasPrefix(e, "OTEL_")
	})
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		defer close(p.gone)
		// The death signal comes when the thread ends that started the child, so
		// this thread must stay until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.gone
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // one that has ended needs none

// kill ends it as kill -9 does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.gone
}

// wait waits for its end.
func (p *process) wait(limit time.Duration) error {
	select {
	case <-p.gone:
		return p.err
	case <-time.After(limit):
		return errors.New("it has not ended")
	}
}

// status is how it ended; false: it has not.
func (p *process) status() (syscall.WaitStatus, bool) {
	select {
	case <-p.gone:
		s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		return s, ok
	default:
		return 0, false
	}
}

// tail is the end of its log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 6 << 10
	return string(text[max(0, len(text)-most):])
}
