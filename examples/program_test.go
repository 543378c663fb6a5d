package examples

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// patience is for everything that must happen, however busy the machine is.
const patience = time.Minute

// program is a running process with what it has started.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    buffer
	err    buffer
	exited chan struct{}
	code   int // valid when exited is closed, as at; -1: ended by a signal
	at     time.Time
}

// buffer is a bytes.Buffer that can be read while it is written, and that knows
// when each line came.
type buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines []line
}

type line struct {
	text string // without its end, which may be to come
	at   time.Time
}

func (b *buffer) Write(p []byte) (int, error) {
	at := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for text := range strings.Lines(string(p)) {
		b.lines = append(b.lines, line{strings.TrimSpace(text), at})
	}
	return b.b.Write(p)
}

// first is when the first line came that begins so.
func (b *buffer) first(prefix string) (line, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.lines, func(l line) bool { return strings.HasPrefix(l.text, prefix) })
	if i < 0 {
		return line{}, false
	}
	return b.lines[i], true
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// environment is ours without what could change a sidecar's ways.
func environment(extra ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LOCKSIDECAR_") && !strings.HasPrefix(e, "POD_NAME=") {
			env = append(env, e)
		}
	}
	return append(env, extra...)
}

// launch starts a program; at the end of the test it is killed.
func launch(t *testing.T, env []string, path string, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env = environment(env...)
	return launchCmd(t, cmd)
}

func launchCmd(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.err
	cmd.WaitDelay = 5 * time.Second // for what a killed program left behind with our pipes open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // the status is looked at below
		p.code, p.at = cmd.ProcessState.ExitCode(), time.Now()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-p.exited
		if t.Failed() {
			t.Logf("%s\nstdout: %s\nstderr: %s", strings.Join(cmd.Args, " "), &p.out, &p.err)
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// wait waits for the end and returns the exit status.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("%v has not ended\nstdout: %s\nstderr: %s", p.cmd.Args, &p.out, &p.err)
	}
	return p.code
}

// says waits until the program has printed a line that begins so.
func (p *program) says(prefix string) line {
	p.t.Helper()
	var l line
	eventually(p.t, p.cmd.Args[0]+" says "+prefix, func() (ok bool) {
		if l, ok = p.out.first(prefix); ok {
			return true
		}
		select {
		case <-p.exited:
			p.t.Fatalf("%v ended with status %d\nstdout: %s\nstderr: %s", p.cmd.Args, p.code, &p.out, &p.err)
		default:
		}
		return false
	})
	return l
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for end := time.Now().Add(patience); !ok(); pause = min(pause+pause/4, 25*time.Millisecond) { // looks take the processors from it
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
		time.Sleep(pause)
	}
}

// sidecar is a locksidecar serve.
type sidecar struct {
	*program
	socket string
	client *client.Client
}

// serve starts a sidecar and waits until it is ready.
func serve(t *testing.T, args ...string) *sidecar {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return serveAt(t, filepath.Join(dir, "s"), args...)
}

func serveAt(t *testing.T, socket string, args ...string) *sidecar {
	t.Helper()
	s := &sidecar{socket: socket}
	s.program = launch(t, nil, binary, append([]string{"serve", "--socket", s.socket}, args...)...)
	s.says("Take a lock") // the example that it prints when apps can connect
	var err error
	if s.client, err = client.Dial(t.Context(), s.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	eventually(t, "the sidecar is ready", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		info, err := s.client.Info(ctx)
		return err == nil && info.GetReady()
	})
	return s
}

// env tells programs where the sidecar is.
func (s *sidecar) env() []string { return []string{"LOCKSIDECAR_SOCKET=" + s.socket} }

// lock asks who holds and who waits for a resource.
func (s *sidecar) lock(resource string) *pb.Lock {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	l, err := s.client.Get(ctx, resource)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// waiters waits until so many wait for a resource.
func (s *sidecar) waiters(resource string, n int) {
	s.t.Helper()
	eventually(s.t, "they wait", func() bool { return len(s.lock(resource).GetWaiters()) == n })
}

// hold takes a lock from this process.
func (s *sidecar) hold(resource string) *client.Lock {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	session, err := s.client.OpenSession(ctx, client.SessionOptions{Name: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = session.Close() })
	l, err := session.Acquire(ctx, resource, client.AcquireOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// redisURL is a Redis that was just started and is known to be empty: it may
// grant at once.
func redisURL(t *testing.T) string {
	t.Helper()
	return testengine.Shared(t, testengine.Redis).URL() + "?restart-grace=0s"
}

// pair starts two sidecars that exclude each other through Redis.
func pair(t *testing.T, args ...string) (one, other *sidecar) {
	t.Helper()
	args = append(args, "--store", redisURL(t), "--namespace", rand.Text())
	return serve(t, args...), serve(t, args...)
}
