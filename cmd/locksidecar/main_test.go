package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// The tests here run the real program as people do.

// patience is for everything that must happen, however busy the machine is.
const patience = time.Minute

var binary string // of the program under test

type tests struct{ m *testing.M }

func (t tests) Run() int {
	ignores := false
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(s) { // as in the background of a script, or by nohup: the programs here do not
			signal.Notify(make(chan os.Signal, 1), s)
			ignores = true
		}
	}
	if ignores { // and tests of serve within this process would ignore them again; what is caught is not ignored by the next program
		fmt.Fprintln(os.Stderr, "start again without ignored signals:", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
		return 1
	}
	dir, err := os.MkdirTemp("", "locksidecar-cmd-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "locksidecar")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags", "-w -X main.version=v0.0.0-test", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build` does, but for what debuggers need
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	return t.m.Run()
}

func TestMain(m *testing.M) {
	if arg := os.Getenv(withdrawEnv); arg != "" { // an app of TestWithdrawals
		if err := withdraw(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if what := os.Getenv(neighbourEnv); what != "" { // one of a pod
		if err := neighbour(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testengine.SideBySide(6)
	goleak.VerifyTestMain(testengine.Main(tests{m}),
		// go-redis, by which the tests see Redis come up again, tries once a second to
		// reach a server that is away and learns only then that its pool was closed.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// program is a running locksidecar.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *buffer
	err    *buffer
	exited chan struct{}
	code   int // valid when exited is closed; -1: ended by a signal
}

// buffer is a bytes.Buffer that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// cleanEnv is the environment without what could change the program's ways.
func cleanEnv(extra ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LOCKSIDECAR_") && !strings.HasPrefix(e, "OTEL_") && !strings.HasPrefix(e, "POD_NAME=") {
			env = append(env, e)
		}
	}
	return append(env, extra...)
}

// launch starts a program; at the end of the test it is killed.
func launch(t *testing.T, env []string, path string, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env = cleanEnv(env...)
	return launchCmd(t, cmd)
}

// launchAs starts a program of another user.
func launchAs(t *testing.T, uid uint32, path string, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env, cmd.Dir = cleanEnv(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return launchCmd(t, cmd)
}

func launchCmd(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: cmd, out: &buffer{}, err: &buffer{}, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.WaitDelay = 5 * time.Second // for what a killed program left behind with our pipes open
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the status is looked at below
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGKILL)
		<-p.exited
		if t.Failed() {
			t.Logf("%s\nstdout: %s\nstderr: %s", strings.Join(cmd.Args, " "), p.out, p.err)
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// ended reports whether it has ended.
func (p *program) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// wait waits for the end and returns the exit status.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("%v has not ended\nstdout: %s\nstderr: %s", p.cmd.Args, p.out, p.err)
	}
	return p.code
}

// result is the end of a program.
type result struct {
	out, err string
	code     int
}

// cli runs locksidecar to its end.
func cli(t *testing.T, args ...string) result {
	t.Helper()
	return cliEnv(t, nil, args...)
}

// tries runs a command that does not wait for a lock, until the store answers: on a busy machine that may take longer than
// a try waits for it.
func tries(t *testing.T, args ...string) result {
	t.Helper()
	got := cli(t, args...)
	for end := time.Now().Add(patience); got.code == exitUnavailable && time.Now().Before(end); got = cli(t, args...) {
		time.Sleep(50 * time.Millisecond)
	}
	return got
}

func cliEnv(t *testing.T, env []string, args ...string) result {
	t.Helper()
	p := launch(t, env, binary, args...)
	p.wait()
	return result{p.out.String(), p.err.String(), p.code}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	pause := 5 * time.Millisecond
	for end := time.Now().Add(patience); !ok(); pause = min(pause+pause/4, 25*time.Millisecond) { // looks take the processors from it
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
		time.Sleep(pause)
	}
}

// sidecarProgram is a locksidecar serve.
type sidecarProgram struct {
	*program
	socket string
}

// serveProgram starts a sidecar and waits until apps can connect.
func serveProgram(t *testing.T, args ...string) *sidecarProgram {
	t.Helper()
	return serveAt(t, filepath.Join(socketDir(t), "s"), args...)
}

func serveAt(t *testing.T, socket string, args ...string) *sidecarProgram {
	t.Helper()
	return serveIn(t, nil, socket, args...)
}

// serveIn is serveAt with more environment variables.
func serveIn(t *testing.T, env []string, socket string, args ...string) *sidecarProgram {
	t.Helper()
	p := launch(t, env, binary, append([]string{"serve", "--socket", socket}, args...)...)
	eventually(t, "the sidecar serves", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("the sidecar ended with status %d: %s", p.code, p.err)
		default:
		}
		return strings.Contains(p.out.String(), "curl ")
	})
	return &sidecarProgram{program: p, socket: socket}
}

// socketDir is a directory whose name is short enough for sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// dial connects a client.
func dial(t *testing.T, s *sidecarProgram) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// hold takes a lock from this process.
func hold(t *testing.T, c *client.Client, resource string) *client.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := s.Acquire(ctx, resource, client.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// status asks who holds and waits for a resource, until the store answers: on a busy machine it may take longer than a
// request waits for it.
func status(t *testing.T, c *client.Client, resource string) (holders, waiters int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := c.Get(ctx, resource)
	for errors.Is(err, client.ErrStoreUnavailable) && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
		l, err = c.Get(ctx, resource)
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(l.GetHolders()), len(l.GetWaiters())
}

// alive reports whether a process is there and has not ended.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " ")
	return state != "" && state[0] != 'Z' && state[0] != 'X'
}

// freeze stops a process. When it returns, none of its threads works any more: the
// signal alone lets some of them go on for a moment.
func freeze(t *testing.T, pid int) {
	t.Helper()
	kill(t, pid, syscall.SIGSTOP)
	eventually(t, "the process is frozen", func() bool { return frozen(pid) })
}

// frozen reports whether all threads of a process are stopped.
func frozen(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is right
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')'):], []byte(") T")) {
			return false
		}
	}
	return len(threads) > 0
}

// storeURL is for a Redis that was just started and is known to be empty: it
// may grant at once.
func storeURL(s testengine.Server) string { return s.URL() + "?restart-grace=0s" }

// stores are those that sidecars share. A user changes only the URL.
var stores = []*testengine.Kind{testengine.Redis, testengine.ZooKeeper, testengine.Etcd, testengine.MariaDB, testengine.MySQL, testengine.Postgres}

// onEach runs a test on each of the stores.
func onEach(t *testing.T, test func(t *testing.T, kind *testengine.Kind)) {
	for _, kind := range stores {
		t.Run(kind.String(), func(t *testing.T) { test(t, kind) })
	}
}

// onStore are flags for a store of that kind, and a namespace of the test's own.
func onStore(t *testing.T, kind *testengine.Kind, more ...string) []string {
	url := testengine.Shared(t, kind).URL()
	switch kind {
	case testengine.Redis:
		url = storeURL(testengine.Shared(t, kind))
	case testengine.ZooKeeper:
		url += "?tick=200ms" // that of its servers
	}
	return append([]string{"--store", url, "--namespace", namespace(t)}, more...)
}

// namespace is one that no other test, and no other run of this one, uses.
func namespace(t *testing.T) string {
	return strings.ReplaceAll(t.Name(), "/", "-") + "-" + rand.Text()[:8]
}
