package localapi

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/session"
)

func TestListen(t *testing.T) {
	path := filepath.Join(socketDir(t), "private", "s.sock")
	s, err := listen(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(filepath.Dir(path)); err != nil || i.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", i.Mode(), err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 || i.Mode().Type() != fs.ModeSocket {
		t.Errorf("socket: %v %v", i.Mode(), err)
	}
	if i, err := os.Stat(path + ".lock"); err != nil || i.Mode() != 0o600 {
		t.Errorf("lock file: %v %v", i.Mode(), err)
	}
	if _, err := listen(t.Context(), path, 0o600); !errors.Is(err, ErrSocketInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("second: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestReplace: the socket of who serves it is replaced by one step, and who is replaced leaves the
// new one alone, as does who comes after both.
func TestReplace(t *testing.T) {
	path := filepath.Join(socketDir(t), "s.sock")
	if Served(t.Context(), path) {
		t.Error("somebody serves no socket")
	}
	first, err := replace(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if !Served(t.Context(), path) {
		t.Error("nobody serves the first one's")
	}
	second, err := replace(t.Context(), path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o666 {
		t.Errorf("socket: %v %v", i, err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if !Served(t.Context(), path) {
		t.Error("the first one has taken the second one's away")
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil || Served(t.Context(), path) {
		t.Errorf("what is left: %v", err)
	}
	if _, err := replace(t.Context(), "@s", 0o600); err == nil || !strings.HasPrefix(err.Error(), "listen on @s: ") {
		t.Errorf("an abstract one: %v", err)
	}
}

func TestListenOnStale(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	// Without our lock file, as another program or an older sidecar would have it.
	if _, err := listen(t.Context(), path, 0o600); !errors.Is(err, ErrSocketInUse) {
		t.Errorf("on a live socket: %v", err)
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := listen(t.Context(), path, 0o600)
	if err != nil {
		t.Fatalf("on a dead socket: %v", err)
	}
	// Somebody removes the socket and another sidecar takes its place.
	if err := errors.Join(os.Remove(path), os.Remove(path+".lock")); err != nil {
		t.Fatal(err)
	}
	other, err := listen(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the other's socket was removed: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestListenRefuses(t *testing.T) {
	dir := socketDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"":           "no path",
		"@abstract":  "abstract",
		file:         "not a socket",
		file + "/s":  "not a directory",
		"/proc/no/s": "no such file",
		filepath.Join(dir, strings.Repeat("x", 107)): "at most 107",
	} {
		if _, err := listen(t.Context(), path, 0o600); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q %v", b, err)
	}
}

// TestListenLeavesNothing: where a socket cannot be made, no file is left behind in the
// directory, and none is open.
func TestListenLeavesNothing(t *testing.T) {
	open := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	dir := socketDir(t)
	taken := filepath.Join(dir, "taken")
	first, err := listen(t.Context(), taken, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	folder := filepath.Join(dir, "folder")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	live := filepath.Join(dir, "live") // of another program, without our lock
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: live})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	long := filepath.Join(dir, strings.Repeat("d", maxSocketPath-len(dir)-4))
	before, _ := os.ReadDir(dir)
	files := open()
	for range 5 {
		for path, want := range map[string]string{
			taken: "is locked", folder: "not a socket", live: "serves this socket", filepath.Join(long, "s"): "directory is too long by 7 bytes",
		} {
			if _, err := listen(t.Context(), path, 0o600); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "listen on "+path+": ") {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if n := open(); n != files {
		t.Errorf("%d files are open, %d were before", n, files)
	}
	if err := os.Remove(long); err != nil {
		t.Errorf("what is in the directory of the long path: %v", err)
	}
	if after, _ := os.ReadDir(dir); len(after) != len(before) {
		t.Errorf("%v, before %v", after, before)
	}
}

// TestLongestPath: the longest that the kernel takes is served.
func TestLongestPath(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, strings.Repeat("s", maxSocketPath-len(dir)-1))
	s, err := listen(t.Context(), path, 0o600)
	if err != nil || len(path) != maxSocketPath {
		t.Fatalf("%d bytes: %v", len(path), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := listen(t.Context(), path+"s", 0o600); err == nil || !strings.Contains(err.Error(), "the path is 108 bytes long, at most 107 are possible") {
		t.Errorf("one more: %v", err)
	}
}

// TestBindFails: what was made on the way is removed again.
func TestBindFails(t *testing.T) {
	dir := socketDir(t)
	folder := filepath.Join(dir, "folder")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := bind(t.Context(), folder, 0o600); err == nil {
		t.Error("a socket took the place of a directory")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, _, err := bind(t.Context(), "/proc/s", 0o600); err == nil {
		t.Error("there is a socket in /proc")
	}
	if _, err := lockPath("/proc/s.lock"); err == nil {
		t.Error("there is a lock in /proc")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkStale(t.Context(), filepath.Join(file, "s")); err == nil {
		t.Error("a path below a file is free")
	}
	deep := filepath.Join(dir, strings.Repeat("d", maxSocketPath-len(dir)-11))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := listen(t.Context(), filepath.Join(deep, "s"), 0o600)
	if err != nil {
		t.Fatalf("the longest directory, of %d bytes: %v", len(deep), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestListenOnABusySocket: one that is alive and has no place for one more connection is
// somebody's.
func TestListenOnABusySocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		defer func() { _ = c.Close() }()
	}
	if _, err := listen(t.Context(), path, 0o600); !errors.Is(err, ErrSocketInUse) || !strings.Contains(err.Error(), "or cannot be reached: ") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("it was removed: %v", err)
	}
}

// TestWatchOfTheSocket: it tells once that nobody finds the socket any more, and nothing
// while it is there, or when it ends.
func TestWatchOfTheSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	s, err := listen(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.watch(ctx, func() { t.Error("it is said to be gone") })
	synctest.Test(t, func(t *testing.T) { // while it is there nothing is said, however often it is looked at
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.watch(ctx, func() { t.Error("it is said to be gone while it is there") })
	})
	var out logLines
	x := start(t, logTo(&out))
	if err := os.Remove(x.socket); err != nil {
		t.Fatal(err)
	}
	eventually(t, "logged", func() bool {
		return strings.Contains(out.String(), "[ERROR] the socket was removed or replaced: ") && strings.Contains(out.String(), "restart this sidecar: socket="+x.socket)
	})
	if !strings.Contains(out.String(), "[INFO]  serving: socket="+x.socket) {
		t.Errorf("log: %s", out.String())
	}
}

// Of many sidecars that start at once on the path of a dead one, one serves.
func TestListenRace(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	for range 20 {
		if l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path}); err == nil {
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}
		var wg sync.WaitGroup
		got := make(chan *socketFile, 8)
		for range cap(got) {
			wg.Go(func() {
				s, err := listen(context.Background(), path, 0o600)
				switch {
				case err == nil:
					got <- s
				case !errors.Is(err, ErrSocketInUse):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(got) != 1 {
			t.Fatalf("%d serve", len(got))
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("nobody answers: %v", err)
		}
		_ = c.Close()
		if err := (<-got).Close(); err != nil {
			t.Error(err)
		}
	}
}

// A socket and its lock file were removed, and another sidecar has the place: the
// first says so, and leaves the files of the other alone at its end.
func TestRemovedSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	first, err := listen(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + ".lock"} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	second, err := listen(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	told := false
	first.watch(t.Context(), func() { told = true })
	if !told {
		t.Error("nothing was said")
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{path, path + ".lock"} {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("the first has removed a file of the second: %v", err)
		}
	}
	if _, err := listen(t.Context(), path, 0o600); !errors.Is(err, ErrSocketInUse) {
		t.Errorf("a third: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestTwoSidecarsOnOneSocket(t *testing.T) {
	s := start(t)
	second := New(Options{Manager: s.manager, Socket: s.socket})
	if err := second.Run(t.Context()); !errors.Is(err, ErrSocketInUse) {
		t.Errorf("second: %v", err)
	}
	if code, body := call(t, s.http(t), "GET", "/readyz", ""); code != 200 {
		t.Errorf("the first: %d %s", code, body)
	}
	s.stop()
	if _, err := os.Stat(s.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket after stop: %v", err)
	}
}

// A server that stops removes its socket, and warns nobody of that, however long
// the last calls take.
func TestStopIsNoLossOfTheSocket(t *testing.T) {
	var log strings.Builder
	s := start(t, func(_ *session.Options, o *Options) { o.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := "POST /v1/hold HTTP/1.1\r\nHost: locksidecar\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
	if _, err := c.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("the call does not wait for its body: %q %v", line, err)
	}
	began := time.Now()
	s.stop()
	if d := time.Since(began); d < firstLook {
		t.Fatalf("it stopped after %s, too soon to tell", d)
	}
	if text := log.String(); strings.Contains(text, "the socket was removed") {
		t.Errorf("log: %s", text)
	}
}
