package peercred

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pidfds counts the open files of this process that are pidfds.
func pidfds(t *testing.T) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range dir {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}

// noMoreFiles lets this process open no file until the function that it returns is called.
func noMoreFiles(t *testing.T) func() {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoPidfdIsLeft: one for each process that is watched, and none afterwards.
func TestNoPidfdIsLeft(t *testing.T) {
	w, l := start(t)
	children := 2
	var peers []*Peer
	var conns []*net.UnixConn
	for range children {
		c, _ := connect(t, l)
		conns = append(conns, c)
	}
	before := pidfds(t) // os/exec has some, too
	for _, c := range conns {
		p, err := watch(w, c, func() {})
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
	}
	if got := pidfds(t) - before; got != children {
		t.Fatalf("%d pidfds of %d processes", got, children)
	}
	for i, p := range peers {
		p.Release()
		if got, want := pidfds(t)-before, children-1-i; got != want {
			t.Errorf("%d pidfds after a release, want %d", got, want)
		}
	}
	closed, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := watch(closed, conns[0], func() {}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed watcher: %v", err)
	}
	if got := pidfds(t) - before; got != 0 {
		t.Errorf("%d pidfds after a watch that failed", got)
	}
}

// TestOneOfTwoConnectionsIsReleased: the process is watched as long as one of its
// connections has an owner, whichever; and of each its own end is told.
func TestOneOfTwoConnectionsIsReleased(t *testing.T) {
	for released := range 2 {
		w, l := start(t)
		var peers [2]*Peer
		var told [2]chan struct{}
		c, process := connect(t, l, "PEERCRED_TEST_MORE=xx")
		before := pidfds(t)
		for i := range peers {
			var err error
			if i > 0 {
				if c, err = l.AcceptUnix(); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
			}
			told[i] = make(chan struct{})
			if peers[i], err = watch(w, c, func() { close(told[i]) }); err != nil {
				t.Fatal(err)
			}
		}
		w.mu.Lock()
		known := len(w.watched)
		w.mu.Unlock()
		if n := pidfds(t) - before; n != known {
			t.Errorf("%d pidfds are open and %d are known", n, known)
		}
		peers[released].Release()
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		await(t, peers[1-released].Gone)
		await(t, told[1-released])
		if isGone(peers[released]) {
			t.Error("told after the release")
		}
		peers[1-released].Release()
	}
}

func TestNoMoreFiles(t *testing.T) {
	w, l := start(t)
	c, _ := connect(t, l)
	p, err := Identify(c)
	if err != nil {
		t.Fatal(err)
	}
	restore := noMoreFiles(t)
	watchErr := w.Watch(p, c, func() {})
	none, newErr := NewWatcher()
	restore()
	if !errors.Is(watchErr, unix.EMFILE) {
		t.Errorf("Watch: %v", watchErr)
	}
	if !errors.Is(newErr, unix.EMFILE) || none != nil {
		t.Errorf("NewWatcher: %v", newErr)
	}
}

// TestASocketTwice: the kernel refuses to watch one socket twice.
func TestASocketTwice(t *testing.T) {
	w, l := start(t)
	_, server := pair(t, l)
	stop, err := w.HangUp(server, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if _, err := w.HangUp(server, func() {}); !errors.Is(err, unix.EEXIST) {
		t.Errorf("watched twice: %v", err)
	}
}

// TestRunFails when its epoll does, and takes nothing more.
func TestRunFails(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.epoll.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "watch peers") {
		t.Errorf("Run: %v", err)
	}
	if !w.closed {
		t.Error("the watcher takes more peers")
	}
}

// TestNoConnection: what is no connection has nobody at its other end.
func TestNoConnection(t *testing.T) {
	if p, err := Identify(&net.UnixConn{}); err == nil {
		t.Errorf("identified as %+v", p)
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(socket) }()
	if groups, err := peerGroups(uintptr(socket)); err != nil || groups != nil {
		t.Errorf("groups of nobody: %v, %v", groups, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if groups, err := peerGroups(null.Fd()); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("groups of no socket: %v, %v", groups, err)
	}
}

// TestAnswersToAPID: what each answer means where the kernel has no SO_PEERPIDFD.
func TestAnswersToAPID(t *testing.T) {
	for _, c := range []struct {
		answer     error
		gone, fail bool
		pidfd      int
	}{
		{nil, false, false, 77},
		{unix.ESRCH, true, false, -1},
		{unix.ENOSYS, false, false, -1},
		{unix.EPERM, false, false, -1},
		{unix.EMFILE, false, true, -1},
	} {
		pidfd, gone, err := openedPID(max(c.pidfd, 0), c.answer)
		if pidfd != c.pidfd || (gone == gonePeer) != c.gone || errors.Is(err, c.answer) != c.fail && c.answer != nil || (err != nil) != c.fail {
			t.Errorf("%v: %d, gone %v, %v", c.answer, pidfd, gone != nil, err)
		}
	}
}

// TestClosedTellsOfTheCloseAlone: not of bytes that nobody reads, and not of the end of
// the sending side.
func TestClosedTellsOfTheCloseAlone(t *testing.T) {
	w, l := start(t)
	client, server := pair(t, l)
	told := make(chan struct{})
	stop, err := w.Closed(server, func() { close(told) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if _, err := client.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-told:
		t.Fatal("told of bytes, or of half a close")
	case <-time.After(20 * time.Millisecond):
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, told)
}
