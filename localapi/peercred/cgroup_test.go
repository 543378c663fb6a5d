package peercred

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup makes a cgroup of the machine, below one for this test, and gives its path from the root.
func cgroup(t *testing.T, g *Cgroups, below string) string {
	t.Helper()
	path := "/peercredtest" + strconv.Itoa(os.Getpid()) + t.Name()
	makeCgroup(t, g, path)
	for part := range strings.SplitSeq(strings.Trim(below, "/"), "/") {
		if part != "" {
			path += "/" + part
			makeCgroup(t, g, path)
		}
	}
	return path
}

// makeCgroup makes a cgroup where it is missing, and removes it at the end.
func makeCgroup(t *testing.T, g *Cgroups, path string) {
	t.Helper()
	switch err := os.Mkdir(g.root+path, 0o755); {
	case errors.Is(err, os.ErrExist):
		return
	case err != nil:
		t.Skip("cannot make cgroups: ", err)
	}
	t.Cleanup(func() {
		err := os.Remove(g.root + path)
		// The kernel may need a moment to forget the processes.
		for end := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
			err = os.Remove(g.root + path)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

func findCgroups(t *testing.T) *Cgroups {
	t.Helper()
	g, err := FindCgroups()
	if err != nil {
		t.Skip(err)
	}
	return g
}

// startIn starts a process in a cgroup, that is killed and reaped at the end at the latest.
func startIn(t *testing.T, g *Cgroups, path string, p *exec.Cmd) *exec.Cmd {
	t.Helper()
	dir, err := os.Open(g.root + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	if p.SysProcAttr == nil {
		p.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.SysProcAttr.UseCgroupFD, p.SysProcAttr.CgroupFD = true, int(dir.Fd())
	switch err := p.Start(); {
	case errors.Is(err, unix.EPERM):
		t.Skip("cannot start a process in a cgroup, or in namespaces: ", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { end(p) })
	return p
}

// end kills a process and reaps it.
func end(p *exec.Cmd) {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// connector is a process that connects, and ends at once if it is told to.
func connector(l *net.UnixListener, env ...string) *exec.Cmd {
	p := exec.Command("/proc/self/exe")
	p.Env = append(append(os.Environ(), "PEERCRED_TEST_CONNECT="+l.Addr().String()), env...)
	return p
}

func accept(t *testing.T, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	_ = l.SetDeadline(time.Now().Add(time.Minute))
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestCgroupOfAPeer: that of the process which has connected, whoever has the socket now.
func TestCgroupOfAPeer(t *testing.T) {
	g := findCgroups(t)
	_, l := start(t)
	for _, below := range []string{"", "/a.service", "/a.service/b c"} {
		path := cgroup(t, g, below)
		startIn(t, g, path, connector(l))
		before := pidfds(t)
		if got, err := g.Of(accept(t, l)); err != nil || got != path {
			t.Errorf("%s, %v; want %s", got, err, path)
		}
		if got := pidfds(t); got != before {
			t.Errorf("%d pidfds are left", got-before)
		}
	}
}

// TestCgroupIsRemembered: nothing is read of a process in a cgroup that is known. Who moves is in another one, who has ended
// in none, and one that was made again by the same name is found, too.
func TestCgroupIsRemembered(t *testing.T) {
	g := findCgroups(t)
	_, l := start(t)
	first, second := cgroup(t, g, "/first"), cgroup(t, g, "/second")
	p := startIn(t, g, first, connector(l))
	c := accept(t, l)
	if id, err := idOf(p.Process.Pid); err != nil || id == 0 {
		t.Skip("this kernel tells no cgroup of a pidfd: ", err)
	}
	read := 0
	g.read = func(file string) ([]byte, error) {
		read++
		return os.ReadFile(file)
	}
	want := func(c *net.UnixConn, path string, reads bool) {
		t.Helper()
		read = 0
		if got, err := g.Of(c); err != nil || got != path || (read > 0) != reads {
			t.Errorf("%s, %v, %d files were read; want %s", got, err, read, path)
		}
	}
	move := func(path string) {
		t.Helper()
		if err := os.WriteFile(g.root+path+"/cgroup.procs", []byte(strconv.Itoa(p.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	want(c, first, true)
	want(c, first, false)
	move(second)
	want(c, second, true)
	want(c, second, false)
	if err := os.Remove(g.root + first); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(g.root+first, 0o755); err != nil {
		t.Fatal(err)
	}
	move(first)
	want(c, first, true)
	startIn(t, g, first, connector(l))
	want(accept(t, l), first, false)
	for n := range uint64(2 * maxKnown) {
		g.remember(1<<40+n, "/x")
	}
	if len(g.known) > maxKnown {
		t.Errorf("%d are remembered", len(g.known))
	}
	want(c, first, true)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	if got, err := g.Of(c); !errors.Is(err, ErrEnded) || got != "" {
		t.Errorf("of who has ended: %q, %v", got, err)
	}
}

// TestOwnCgroup: it is what one is told of a process of one's own cgroup.
func TestOwnCgroup(t *testing.T) {
	g := findCgroups(t)
	_, l := start(t)
	own, err := g.Own()
	if err != nil {
		t.Fatal(err)
	}
	startIn(t, g, own, connector(l))
	if got, err := g.Of(accept(t, l)); err != nil || got != own {
		t.Errorf("%s, %v; want %s", got, err, own)
	}
	g.read = func(string) ([]byte, error) { return nil, errors.New("broken") }
	if _, err := g.Own(); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("that cannot be read: %v", err)
	}
}

// TestCgroupOfTheDead: of a process that has ended, nothing is told, reaped or not.
func TestCgroupOfTheDead(t *testing.T) {
	g := findCgroups(t)
	_, l := start(t)
	path := cgroup(t, g, "")
	p := startIn(t, g, path, connector(l))
	c := accept(t, l)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var si unix.Siginfo
	if err := unix.Waitid(unix.P_PID, p.Process.Pid, &si, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := g.Of(c); !errors.Is(err, ErrEnded) || got != "" {
		t.Errorf("a zombie: %q, %v", got, err)
	}
	_ = p.Wait()
	if got, err := g.Of(c); !errors.Is(err, ErrEnded) || got != "" {
		t.Errorf("reaped: %q, %v", got, err)
	}
}

// TestCgroupIsChangedMeanwhile: who moves between two looks is not taken for either.
func TestCgroupIsChangedMeanwhile(t *testing.T) {
	g := findCgroups(t)
	_, l := start(t)
	from, to := cgroup(t, g, "/from"), cgroup(t, g, "/to")
	p := startIn(t, g, from, connector(l))
	c := accept(t, l)
	if id, err := idOf(p.Process.Pid); err != nil || id == 0 {
		t.Skip("this kernel tells no cgroup of a pidfd: ", err)
	}
	g.read = func(file string) ([]byte, error) {
		text, err := os.ReadFile(file)
		if strings.HasSuffix(file, "/cgroup") {
			if err := os.WriteFile(g.root+to+"/cgroup.procs", []byte(strconv.Itoa(p.Process.Pid)), 0); err != nil {
				t.Error(err)
			}
		}
		return text, err
	}
	if got, err := g.Of(c); err == nil || !strings.Contains(err.Error(), "moved out of "+from) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := g.Of(c); err != nil || got != to {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

func idOf(pid int) (uint64, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(pidfd) }()
	return cgroupID(pidfd)
}

// inside runs a test once more, in namespaces of its own and in a cgroup.
func inside(t *testing.T, g *Cgroups, path, test string, namespaces uintptr) {
	t.Helper()
	var out bytes.Buffer
	limit := "5m"
	if os.Getenv("LOCKSIDECAR_TEST_FULL") != "" {
		limit = "2h"
	}
	p := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v", "-test.timeout="+limit)
	p.Env = append(os.Environ(), "PEERCRED_TEST_INSIDE="+path)
	p.Stdout, p.Stderr = &out, &out
	p.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	startIn(t, g, path, p)
	err := p.Wait()
	switch {
	case err == nil && strings.Contains(out.String(), "--- SKIP: "+test):
		t.Skip(&out)
	case err != nil || !strings.Contains(out.String(), "--- PASS: "+test):
		t.Errorf("%v: %s", err, &out)
	default:
		t.Log(&out) // what it has counted
	}
}

// only skips where a test is not run by inside, and gives the cgroup.
func only(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PEERCRED_TEST_INSIDE")
	if path == "" {
		t.Skip("runs inside of another test")
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestInACgroupNamespace: paths are from the machine's root, also where /proc shows them from
// the root of the sidecar's own container.
func TestInACgroupNamespace(t *testing.T) {
	g := findCgroups(t)
	inside(t, g, cgroup(t, g, "/pods/agent"), "TestInsideACgroupNamespace", unix.CLONE_NEWCGROUP)
}

func TestInsideACgroupNamespace(t *testing.T) {
	ours := only(t)
	if _, err := FindCgroups(); err == nil || !strings.Contains(err.Error(), "where paths of this process begin") {
		t.Errorf("without a mount of the namespace's own: %v", err)
	}
	own := t.TempDir()
	if err := unix.Mount("none", own, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(own, 0) })
	g, err := FindCgroups()
	if err != nil {
		t.Fatal(err)
	}
	if got := "/" + strings.Join(g.base, "/"); got != ours {
		t.Fatalf("paths begin at %s, want %s", got, ours)
	}
	_, l := start(t)
	for _, path := range []string{ours + "/below", filepath.Dir(ours) + "/beside", "/" + strings.Split(ours, "/")[1]} {
		makeCgroup(t, g, path)
		startIn(t, g, path, connector(l))
		if got, err := g.Of(accept(t, l)); err != nil || got != path {
			t.Errorf("%s, %v; want %s", got, err, path)
		}
	}
	if _, err := cgroupsAt([]cgroupMount{{root: "/", at: own}}); err == nil || !strings.Contains(err.Error(), "of the whole machine") {
		t.Errorf("without the machine's cgroups: %v", err)
	}
}

// TestAProcessIDIsUsedAgain: who has ended is not taken for who has its process id now.
func TestAProcessIDIsUsedAgain(t *testing.T) {
	g := findCgroups(t)
	inside(t, g, cgroup(t, g, ""), "TestInsideAProcessIDIsUsedAgain", unix.CLONE_NEWPID)
}

// In a PID namespace of our own, nobody else takes the ids.
func TestInsideAProcessIDIsUsedAgain(t *testing.T) {
	path := only(t)
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	g := findCgroups(t)
	_, l := start(t)
	victim, attacker := path+"/victim", path+"/attacker"
	makeCgroup(t, g, victim)
	makeCgroup(t, g, attacker)
	// again is a process of the victim with the process id of another, which is reaped.
	again := func(of *exec.Cmd) *exec.Cmd {
		for range 1000 {
			if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(of.Process.Pid-1)), 0); err != nil {
				t.Skip("cannot choose process ids: ", err)
			}
			p := startIn(t, g, victim, exec.Command("sleep", "600"))
			if p.Process.Pid == of.Process.Pid {
				return p
			}
			end(p) // a thread of ours was faster
		}
		t.Fatal("the process id does not come back")
		return nil
	}
	for range 50 {
		// It connects and ends at once; its process id goes to the victim before it is accepted.
		p := startIn(t, g, attacker, connector(l, "PEERCRED_TEST_ENDS=1"))
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		v := again(p)
		c := accept(t, l)
		if peer, err := Identify(c); err != nil || int(peer.PID) != v.Process.Pid {
			t.Fatalf("the number that SO_PEERCRED gives is not the victim's: %+v, %v", peer, err)
		}
		if got, err := g.Of(c); !errors.Is(err, ErrEnded) || got != "" {
			t.Fatalf("taken for a process in %q: %v", got, err)
		}
		end(v)
	}
	// The same between two looks at the process.
	for _, file := range []string{"/fdinfo/", "/cgroup"} {
		p := startIn(t, g, attacker, connector(l))
		c := accept(t, l)
		var v *exec.Cmd
		g.read = func(name string) ([]byte, error) {
			if v == nil && strings.Contains(name, file) {
				end(p)
				v = again(p)
			}
			text, err := os.ReadFile(name)
			if file == "/cgroup" && strings.HasSuffix(name, file) && !bytes.Contains(text, []byte(victim)) {
				t.Errorf("not the victim's: %s, %v", text, err)
			}
			return text, err
		}
		if got, err := g.Of(c); !errors.Is(err, ErrEnded) || got != "" {
			t.Errorf("%s: taken for a process in %q: %v", file, got, err)
		}
		end(v)
	}
}

// TestPathsInProc: what the kernel can say, and what it cannot.
func TestPathsInProc(t *testing.T) {
	for _, c := range []struct{ base, file, want string }{
		{"", "0::/\n", "/"},
		{"", "0::/a/b\n", "/a/b"},
		{"", "9:name=systemd:/x\n8:pids:/y\n0::/a\n", "/a"},
		{"", "9:name=systemd:/x\n", ""},
		{"", "", ""},
		{"", "0::a\n", ""},
		{"", "0::/..\n", ""},
		{"", "0::/a/../b\n", ""},
		{"", "0::/a//b\n", ""},
		{"", "0::/a/\n", ""},
		{"", "0::/a/./b\n", ""},
		{"x/y", "0::/\n", "/x/y"},
		{"x/y", "0::/a\n", "/x/y/a"},
		{"x/y", "0::/../a\n", "/x/a"},
		{"x/y", "0::/../../a/b\n", "/a/b"},
		{"x/y", "0::/../..\n", "/"},
		{"x/y", "0::/../../..\n", ""},
		{"x/y", "0::/../a/../b\n", ""},
		{"x/y", "0::/..a\n", "/x/y/..a"},
	} {
		g := &Cgroups{}
		if c.base != "" {
			g.base = strings.Split(c.base, "/")
		}
		if got, err := g.absolute([]byte(c.file)); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q from %q: %q, %v; want %q", c.file, c.base, got, err, c.want)
		}
	}
}

func TestCgroupMounts(t *testing.T) {
	got := cgroupMounts(`25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
99 25 0:26 /../.. /node\040a\134b ro - cgroup2 cgroup2 rw
x
`)
	want := []cgroupMount{{"/", "/sys/fs/cgroup"}, {"/../..", `/node a\b`}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%q", got)
	}
	if _, err := cgroupsAt([]cgroupMount{{root: "/", at: t.TempDir()}, {root: "/", at: "/none"}}); err == nil {
		t.Error("what is mounted over by another file system is taken for cgroups")
	}
}

// TestPIDsOfPidfds: what the kernel says of who is out of sight, or gone.
func TestPIDsOfPidfds(t *testing.T) {
	for text, want := range map[string]int{
		"pos:\t0\nPid:\t77\nNSpid:\t77\n": 77,
		"Pid:\t-1\n":                      0,
		"Pid:\t0\n":                       0,
		"Pid:\tx\n":                       0,
		"pos:\t0\n":                       0,
	} {
		g := &Cgroups{read: func(string) ([]byte, error) { return []byte(text), nil }}
		if got, err := g.pid(3); got != want || (err == nil) != (want != 0) || errors.Is(err, ErrEnded) != strings.Contains(text, "-1") {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	g := &Cgroups{read: os.ReadFile}
	if _, err := g.pid(1 << 20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no pidfd: %v", err)
	}
}
