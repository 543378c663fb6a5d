package peercred

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("PEERCRED_TEST_CONNECT"); path != "" {
		for range max(1, len(os.Getenv("PEERCRED_TEST_MORE"))) {
			c, err := net.Dial("unix", path)
			if err != nil {
				os.Exit(1)
			}
			defer func() { _ = c.Close() }()
		}
		if os.Getenv("PEERCRED_TEST_ENDS") != "" {
			syscall.Exit(0) // at once: os.Exit and a return wait for a second where the race detector is on
		}
		time.Sleep(time.Minute)
		return
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T) (*Watcher, *net.UnixListener) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s")})
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w, l
}

// connect makes a process that connects, and accepts it.
func connect(t *testing.T, l *net.UnixListener, env ...string) (*net.UnixConn, *exec.Cmd) {
	t.Helper()
	return connectAs(t, l, nil, env...)
}

// connectAs is connect as somebody else, which only root may.
func connectAs(t *testing.T, l *net.UnixListener, who *syscall.Credential, env ...string) (*net.UnixConn, *exec.Cmd) {
	t.Helper()
	p := exec.Command("/proc/self/exe")
	p.Env = append(append(os.Environ(), "PEERCRED_TEST_CONNECT="+l.Addr().String()), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, p
}

func isGone(p *Peer) bool {
	select {
	case <-p.Gone:
		return true
	default:
		return false
	}
}

func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("not told in time")
	}
}

func TestPeer(t *testing.T) {
	w, l := start(t)
	var told [8]chan struct{}
	var peers [8]*Peer
	var processes [8]*exec.Cmd
	for i := range peers {
		c, process := connect(t, l)
		told[i] = make(chan struct{})
		p, err := watch(w, c, func() { close(told[i]) })
		if err != nil {
			t.Fatal(err)
		}
		if int(p.PID) != process.Process.Pid || int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() || isGone(p) {
			t.Fatalf("%+v", p)
		}
		peers[i], processes[i] = p, process
	}
	peers[7].Release() // nobody is told any more
	for i := range peers {
		if err := processes[i].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if i == 7 {
			break
		}
		await(t, peers[i].Gone)
		await(t, told[i])
		peers[i].Release()
	}
	_ = processes[7].Wait()
	select {
	case <-told[7]:
		t.Error("told after Release")
	case <-peers[7].Gone:
		t.Error("gone after Release")
	case <-time.After(50 * time.Millisecond):
	}
	if n := len(w.watched); n != 0 {
		t.Errorf("%d peers left", n)
	}
}

// A process that has connected again and again holds one file, is told of as often
// as it has connected, and not for those that were released.
func TestConnectionsOfOneProcess(t *testing.T) {
	const connections = 3
	w, l := start(t)
	var told [connections]chan struct{}
	var peers [connections]*Peer
	var p *exec.Cmd
	for i := range peers {
		var c *net.UnixConn
		var err error
		if p == nil {
			c, p = connect(t, l, "PEERCRED_TEST_MORE=xxx")
		} else if c, err = l.AcceptUnix(); err != nil {
			t.Fatal(err)
		}
		told[i] = make(chan struct{})
		if peers[i], err = watch(w, c, func() { close(told[i]) }); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	fd, _, err := openPID(int32(p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	alike := processOf(fd) != process{}
	_ = os.NewFile(uintptr(fd), "pidfd").Close()
	w.mu.Lock()
	n := len(w.watched)
	w.mu.Unlock()
	if alike && n != 1 {
		t.Errorf("%d files for one process", n)
	}
	peers[0].Release()
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < connections; i++ {
		await(t, peers[i].Gone)
		await(t, told[i])
		peers[i].Release()
	}
	if isGone(peers[0]) {
		t.Error("told after the release")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watched) != 0 || len(w.ids) != 0 {
		t.Errorf("%d, %d are left", len(w.watched), len(w.ids))
	}
}

// The watch lasts as long as one owner is left, and a zombie is gone already.
func TestRetain(t *testing.T) {
	w, l := start(t)
	c, process := connect(t, l)
	p, err := watch(w, c, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Retain() {
		t.Fatal("not retained")
	}
	p.Release()
	_ = c.Close()
	if isGone(p) {
		t.Fatal("gone too early")
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, p.Gone)
	p.Release()
	if p.Retain() {
		t.Error("retained after the last Release: nobody would close Gone")
	}
}

// A peer that hangs up is told of though there are bytes that nobody has read.
func TestHangUp(t *testing.T) {
	w, l := start(t)
	for name, hangUp := range map[string]func(*net.UnixConn) error{
		"close":      (*net.UnixConn).Close,
		"half close": (*net.UnixConn).CloseWrite,
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t, l)
			told := make(chan struct{})
			stop, err := w.HangUp(server, func() { close(told) })
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Write([]byte("unread")); err != nil {
				t.Fatal(err)
			}
			select {
			case <-told:
				t.Fatal("told of bytes")
			case <-time.After(20 * time.Millisecond):
			}
			if err := hangUp(client); err != nil {
				t.Fatal(err)
			}
			await(t, told)
			stop()
		})
	}
	client, server := pair(t, l)
	stop, err := w.HangUp(server, func() { t.Error("told after stop") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	_ = client.Close()
	if n := len(w.watched); n != 0 {
		t.Errorf("%d are still watched", n)
	}
}

// pair is a connection of this process with itself.
func pair(t *testing.T, l *net.UnixListener) (client, server *net.UnixConn) {
	t.Helper()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c.(*net.UnixConn), s
}

// watch identifies and watches the peer of c.
func watch(w *Watcher, c *net.UnixConn, then func()) (*Peer, error) {
	p, err := Identify(c)
	if err != nil {
		return nil, err
	}
	return p, w.Watch(p, c, then)
}

// A process that has ended and was waited for before anybody looked is gone.
func TestPeerIsDead(t *testing.T) {
	w, l := start(t)
	c, process := connect(t, l)
	_ = process.Process.Kill()
	_ = process.Wait()
	p, err := watch(w, c, func() {})
	if err != nil {
		t.Fatal(err)
	}
	await(t, p.Gone)
	p.Release()
}

func TestOpenPID(t *testing.T) {
	_, l := start(t)
	_, process := connect(t, l)
	fd, gone, err := openPID(int32(process.Process.Pid))
	if err != nil || fd < 0 || gone != nil {
		t.Fatalf("%d %v %v", fd, gone, err)
	}
	_ = os.NewFile(uintptr(fd), "pidfd").Close()
	if fd, gone, err := openPID(0); fd >= 0 || gone != nil || err != nil {
		t.Errorf("out of sight: %d %v %v", fd, gone, err)
	}
	_ = process.Process.Kill()
	_ = process.Wait()
	if fd, gone, err := openPID(int32(process.Process.Pid)); fd >= 0 || gone == nil || err != nil {
		t.Errorf("dead: %d %v %v", fd, gone, err)
	}
}

// What each answer of the kernel means: it knows, the process is dead, it is too old.
func TestAnswersOfTheKernel(t *testing.T) {
	_, l := start(t)
	_, process := connect(t, l)
	pid := int32(process.Process.Pid)
	for _, c := range []struct {
		pid    int32
		pidfd  int
		answer error
		opens  bool // another pidfd
		gone   bool
		fails  bool
	}{
		{pid: pid, pidfd: 77},
		{pid: pid, pidfd: -1, answer: unix.ESRCH, gone: true},
		{pid: pid, pidfd: -1, answer: unix.EINVAL, gone: true},
		{pid: pid, pidfd: -1, answer: unix.ENOPROTOOPT, opens: true},
		{pid: pid, pidfd: -1, answer: unix.ENODATA, opens: true},
		{pid: 0, pidfd: -1, answer: unix.ENOPROTOOPT},
		{pid: -5, pidfd: -1, answer: unix.ENOPROTOOPT, fails: true},
		{pid: pid, pidfd: -1, answer: unix.EBADF, fails: true},
	} {
		p := &Peer{PID: c.pid}
		pidfd, err := p.opened(c.pidfd, c.answer)
		if c.opens {
			if pidfd <= 2 {
				t.Errorf("%+v: %d, %v", c, pidfd, err)
			} else {
				_ = os.NewFile(uintptr(pidfd), "pidfd").Close()
			}
		} else if pidfd != c.pidfd {
			t.Errorf("%+v: pidfd %d", c, pidfd)
		}
		if (err != nil) != c.fails || (p.Gone != nil) != c.gone || c.gone && !isGone(p) {
			t.Errorf("%+v: %v, gone %v", c, err, p.Gone)
		}
	}
}

// Only pidfds of a kernel that gives each process an inode of its own tell processes apart.
func TestProcessOf(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if got := processOf(int(file.Fd())); got != (process{}) {
		t.Errorf("of another file: %+v", got)
	}
	if got := processOf(-1); got != (process{}) {
		t.Errorf("of no file: %+v", got)
	}
	_, l := start(t)
	_, child := connect(t, l)
	var seen []process
	for _, pid := range []int{os.Getpid(), os.Getpid(), child.Process.Pid} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Skip(err)
		}
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != 0x50494446 {
			t.Skip("the kernel does not tell processes apart: ", fs.Type, err)
		}
		seen = append(seen, processOf(fd))
		_ = unix.Close(fd)
	}
	if seen[0] != seen[1] || seen[0] == seen[2] || seen[0].ino == 0 {
		t.Errorf("%+v: want the first two alike", seen)
	}
}

func TestGroups(t *testing.T) {
	_, l := start(t)
	mine, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]*syscall.Credential{"mine": nil}
	groups := map[string][]uint32{}
	for _, g := range mine {
		groups["mine"] = append(groups["mine"], uint32(g))
	}
	if os.Getuid() == 0 { // only root may choose
		for _, n := range []uint32{0, 1, 64, 65, 200} { // more than the first buffer holds, too
			name := fmt.Sprint(n)
			for g := range n {
				groups[name] = append(groups[name], 5000+g)
			}
			cases[name] = &syscall.Credential{Gid: 4321, Groups: groups[name]}
		}
	}
	for name, who := range cases {
		t.Run(name, func(t *testing.T) {
			c, _ := connectAs(t, l, who)
			got, err := Groups(c)
			if err != nil || len(got)+len(groups[name]) > 0 && !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(groups[name]))) {
				t.Errorf("got %v, %v, want %v", got, err, groups[name])
			}
			if p, err := Identify(c); err != nil || who != nil && (p.GID != who.Gid || p.UID != who.Uid) {
				t.Errorf("%+v, %v, want %+v", p, err, who)
			}
		})
	}
}

// Of a connection that is closed nothing can be told, and that is said.
func TestClosedConnection(t *testing.T) {
	w, l := start(t)
	client, server := pair(t, l)
	p, err := Identify(server)
	if err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	_ = server.Close()
	if _, err := Identify(server); err == nil || !strings.Contains(err.Error(), "identify peer") {
		t.Errorf("Identify: %v", err)
	}
	if _, err := Groups(server); err == nil || !strings.Contains(err.Error(), "read peer groups") {
		t.Errorf("Groups: %v", err)
	}
	if err := w.Watch(p, server, func() {}); err == nil || !strings.Contains(err.Error(), "watch peer") || p.Gone != nil {
		t.Errorf("Watch: %v, %v", err, p.Gone)
	}
	if stop, err := w.HangUp(server, func() {}); err == nil || !strings.Contains(err.Error(), "watch socket") || stop != nil {
		t.Errorf("HangUp: %v", err)
	}
	p.Release() // of what is not watched
}

func TestClosed(t *testing.T) {
	_, l := start(t)
	c, _ := connect(t, l)
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	p, err := watch(w, c, func() {})
	if err == nil || !strings.Contains(err.Error(), "watch peer") {
		t.Errorf("a closed watcher: %v", err)
	}
	if p.watcher != nil {
		t.Error("it is still asked at the release")
	}
	if _, err := w.HangUp(c, func() {}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("HangUp of a closed watcher: %v", err)
	}
}
