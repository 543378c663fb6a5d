package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// Hole 14: the file of serve is also good for run, which asks the sidecar and does not
// become one.
func TestOneFileForAllCommands(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	text := "socket: " + socket + "\nstore: \"" + storeURL(testengine.Shared(t, testengine.Redis)) + "\"\nnamespace: " + namespace(t) + "\nttl: 5s\nname: file\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	side := launch(t, nil, binary, "serve", "--config", file)
	eventually(t, "the sidecar serves", func() bool { return strings.Contains(side.out.String(), "curl ") })
	got := cli(t, "run", "--config", file, "a", "--", "sh", "-c", "echo $LOCKSIDECAR_SOCKET")
	if got.code != 0 || got.out != socket+"\n" {
		t.Errorf("%+v", got)
	}
	if got := cli(t, "list", "--config", file); got.code != 0 {
		t.Errorf("list: %+v", got)
	}
}

// Hole 14: --socket on the command line wins over a store in the environment.
func TestSocketWinsOverStoreInTheEnvironment(t *testing.T) {
	side := serveProgram(t)
	got := cliEnv(t, []string{"LOCKSIDECAR_STORE=redis://127.0.0.1:1"}, "run", "--wait", "0s", "--socket", side.socket, "a", "--", "sh", "-c", "echo $LOCKSIDECAR_SOCKET")
	if got.code != 0 || got.out != side.socket+"\n" {
		t.Errorf("%+v", got)
	}
}

// Without a sidecar: straight to the store, and without a lease there.
func TestAskTheStore(t *testing.T) {
	onEach(t, askTheStore)
}

func askTheStore(t *testing.T, kind *testengine.Kind) {
	store := onStore(t, kind)
	run := launch(t, nil, binary, append(append([]string{"run"}, store...), "a", "--", "sh", "-c", "echo works; exec sleep 600")...)
	eventually(t, "CMD works", func() bool { return strings.Contains(run.out.String(), "works") })
	ask := func(what string, args ...string) {
		t.Helper()
		eventually(t, strings.Join(args, " "), func() bool { // a busy server may take too long
			got := cli(t, append(args, store...)...)
			if got.code != 0 && !strings.Contains(got.err, "the store is unavailable") {
				t.Errorf("%v: %+v", args, got)
			}
			return got.code == 0 && strings.Contains(got.out, what)
		})
	}
	ask("held", "list")
	ask("held", "get", "a")
	watch := launch(t, nil, binary, append([]string{"watch", "--interval", "100ms"}, store...)...)
	eventually(t, "watch shows the lock", func() bool { return strings.Contains(watch.out.String(), "a  held EXCLUSIVE") })
	watch.signal(syscall.SIGTERM)
	if code := watch.wait(); code != 0 {
		t.Errorf("watch: status %d", code)
	}
	ask("taken from", "release", "--force", "a")
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
}

func TestAskAStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	const nowhere = "redis://127.0.0.1:1"
	if got := cliEnv(t, []string{"LOCKSIDECAR_STORE=" + nowhere}, "list", "--socket", "/nowhere"); !strings.Contains(got.err, "no sidecar answers") {
		t.Errorf("a sidecar's store was taken from the environment: %+v", got)
	}
	for _, args := range [][]string{{"list"}, {"get", "a"}, {"watch"}, {"release", "--force", "a"}} {
		got := cli(t, append(args, "--store", nowhere)...)
		if got.code != exitFailure || !strings.Contains(got.err, "the store is unavailable: dial tcp 127.0.0.1:1: ") || strings.Contains(got.err, "readyz") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	frozen := testengine.New(t, testengine.Redis)
	testengine.Pause(t, frozen)
	if got := cli(t, "get", "a", "--store", frozen.URL()+"?timeout=100ms"); got.code != exitFailure || !strings.Contains(got.err, "the store is unavailable: ") || strings.Contains(got.err, "readyz") {
		t.Errorf("a store that is frozen: %+v", got)
	}
}

func TestWatchReconnects(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	hold(t, c, "first")
	watch := launch(t, nil, binary, "watch", "--interval", "100ms", "--socket", side.socket)
	leader := launch(t, nil, binary, "leader", "--watch", "--interval", "100ms", "--socket", side.socket, "second")
	eventually(t, "it shows the first", func() bool { return strings.Contains(watch.out.String(), "first  held") })
	eventually(t, "nobody leads", func() bool { return strings.Contains(leader.out.String(), "second: nobody leads") })
	side.signal(syscall.SIGKILL)
	side.wait()
	for _, p := range []*program{watch, leader} {
		eventually(t, "it says so", func() bool { return strings.Contains(p.err.String(), "trying again") })
	}
	again := serveAt(t, side.socket)
	hold(t, dial(t, again), "second")
	eventually(t, "it shows the second", func() bool { return strings.Contains(watch.out.String(), "second  held") })
	eventually(t, "it shows who leads", func() bool { return strings.Contains(leader.out.String(), " leads at ") })
	for _, p := range []*program{watch, leader} {
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("status %d", code)
		}
	}
}

// Hole 17: an argument that has a password is not shown.
func TestNoPasswordsInErrors(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "redis://u:secret@h"},
		{"list", "a", "redis://u:secret@h"},
		{"redis://u:secret@h"},
		{"run", "--store", "redis://u:secret@h:x", "a", "true"},
	} {
		if got := cli(t, args...); got.code == 0 || strings.Contains(got.err, "secret") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// Hole 17: with few open files it says so once, and not twenty times a second.
func TestFewOpenFiles(t *testing.T) {
	for limit := 10; limit < 18; limit++ { // one of them is all taken by accepted connections
		socket := filepath.Join(socketDir(t), "s")
		side := launch(t, nil, "sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s serve --socket %s", limit, binary, socket))
		eventually(t, "there is a socket, or an end", func() bool {
			_, err := os.Stat(socket)
			return err == nil || side.ended()
		})
		var last net.Conn
		for range 10 {
			if c, err := net.Dial("unix", socket); err == nil {
				defer c.Close()
				last = c
			}
		}
		said := func() int { return strings.Count(side.err.String(), "cannot accept") }
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if last != nil { // asks for what is no request, and has an answer, or is closed
				_, _ = last.Write([]byte("no request\r\n\r\n"))
				_, _ = last.Read(make([]byte, 1))
			}
		}()
		eventually(t, "it has taken all connections, or cannot, or has ended", func() bool {
			select {
			case <-answered:
				return true
			default:
				return said() > 0 || side.ended()
			}
		})
		if said() == 0 {
			continue
		}
		time.Sleep(300 * time.Millisecond) // in which it would say it again
		if n := said(); n > 1 {
			t.Errorf("said %d times", n)
		}
		_ = last.Close()
		<-answered
		return
	}
	t.Error("no sidecar was without open files")
}

// A store that must not grant yet: run says so, and how to turn that off for tests.
func TestRunSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	redis := testengine.New(t, testengine.Redis)
	got := cli(t, "run", "--store", redis.URL(), "--ttl", "3s", "--log-level", "off", "a", "--", "true")
	if got.code != 0 || strings.Count(got.err, "\n") != 1 || !strings.Contains(got.err, "waiting: ") ||
		!strings.Contains(got.err, "granted again in ") || !strings.Contains(got.err, "restart-grace=0s") {
		t.Errorf("%+v", got)
	}
}

func TestVersionFlag(t *testing.T) {
	if got := cli(t, "--version"); got.code != 0 || got.out != "locksidecar version v0.0.0-test\n" {
		t.Errorf("%+v", got)
	}
}

// A file that is no socket is not one that a sidecar has left.
func TestNoSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	touch(t, file)
	if got := cli(t, "info", "--socket", file); got.code != exitFailure || !strings.Contains(got.err, "it is not a socket\n") {
		t.Errorf("%+v", got)
	}
}

// Hole 18: what answers is no sidecar.
func TestPlainErrors(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: http.NotFoundHandler(), Protocols: protocols, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	got := cli(t, "info", "--socket", socket)
	if got.code == 0 || strings.Contains(got.err, "rpc error") || !strings.Contains(got.err, "what answers there is no sidecar") {
		t.Errorf("%+v", got)
	}
}

// Hole 18: a value that is refused is named by its flag, and is a usage error.
func TestValuesThatAreRefused(t *testing.T) {
	side := serveProgram(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"watch", "--interval", "99ms"}, exitUsage, "--interval is 99ms: must be 100ms to 1m"},
		{[]string{"watch", "--interval", "61s"}, exitUsage, "--interval is 1m1s: must be 100ms to 1m"},
		{[]string{"release", "--force", "a", "--grace", "61s"}, exitUsage, "--grace is 1m1s: must be 0s to 1m"},
		{[]string{"release", "--force", "a", "--grace", "-1s"}, exitUsage, "--grace is -1s: must be 0s to 1m"},
		{[]string{"run", "--max-hold", "99ms", "a", "--", "true"}, exitOwnFailure, "--max-hold is 99ms: must be 100ms to 24h"},
		{[]string{"run", "--max-hold", "25h", "a", "--", "true"}, exitOwnFailure, "--max-hold is 25h0m0s: must be 100ms to 24h"},
		{[]string{"get", ""}, exitUsage, "resource must not be empty"},
		// What is just right is not refused.
		{[]string{"release", "--force", "a", "--grace", "1m"}, exitFailure, "nobody holds"},
		{[]string{"run", "--max-hold", "24h", "a", "--", "true"}, 0, ""},
	} {
		got := cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + side.socket}, c.args...)
		if got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
}

// Hole 18: that the store is unavailable is said once.
func TestUnavailableStoreIsSaidOnce(t *testing.T) {
	got := cli(t, "run", "--log-level", "off", "--wait", "0s", "--store", "redis://127.0.0.1:1", "a", "--", "true")
	if got.code != exitUnavailable || strings.Count(got.err, "the store is unavailable") != 1 || !strings.Contains(got.err, "127.0.0.1:1: connect") {
		t.Errorf("%+v", got)
	}
}

// Hole 18: names in wide letters do not shift the columns.
func TestWideLetters(t *testing.T) {
	var b strings.Builder
	table := newTable(&b)
	row(table, "RESOURCE", "STATE")
	row(table, "注文/四十二", "held")
	row(table, "cafe\u0301", "held") // an accent takes no place
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "RESOURCE     STATE\n注文/四十二  held\ncafe\u0301         held\n"; b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

func TestMan(t *testing.T) {
	got := cli(t, "man", "run")
	for _, want := range []string{".TH LOCKSIDECAR-RUN 1", ".SH EXAMPLES", `.B \-\-conflict\-exit\-code int`, "locksidecar\\-watch(1)"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if got := cli(t, "man", "nothing"); got.code != exitUsage {
		t.Errorf("%+v", got)
	}
}
