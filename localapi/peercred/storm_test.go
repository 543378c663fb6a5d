package peercred

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connectsAndEnds has one process after the other connect and end, each with an early process id. The
// address that it connects from says whose it is, and no cgroup does. One of ends ends at once; the others take turns: one
// waits 3 ms, which may be over when it is looked at, and the next one, of stays, until its connection is closed.
const connectsAndEnds = `
import os, socket, sys, time
path, ends, stays = sys.argv[1:]
ids = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
alive = []
n = 0
while True:
    n += 1
    os.pwrite(ids, b"1000", 0)
    pid = os.fork()
    if pid == 0:
        name = stays if stays and n % 2 else ends
        s = socket.socket(socket.AF_UNIX)
        s.bind("\0%s-%d-%d" % (name, os.getpid(), n))
        s.connect(path)
        if name == stays:
            s.recv(1)
        elif stays:
            time.sleep(0.003)
        os._exit(0)
    alive.append(pid)
    if not stays or len(alive) > 3:
        os.waitpid(alive.pop(0), 0)
`

// TestManyConnectAndEnd: of two containers whose processes connect and end while they take over each other's process
// ids, none is ever taken for the other. With LOCKSIDECAR_TEST_FULL there are 100,000.
func TestManyConnectAndEnd(t *testing.T) {
	g := findCgroups(t)
	inside(t, g, cgroup(t, g, ""), "TestInsideManyConnectAndEnd", unix.CLONE_NEWPID)
}

func TestInsideManyConnectAndEnd(t *testing.T) {
	path := only(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: ", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte("1000"), 0); err != nil {
		t.Skip("cannot choose process ids: ", err)
	}
	rounds := 500
	if os.Getenv("LOCKSIDECAR_TEST_FULL") != "" {
		rounds = 100_000
	}
	g := findCgroups(t)
	_, l := start(t)
	shorten(t, l)
	of := map[string]string{"attacker": path + "/attacker", "victim": path + "/victim", "waiting": path + "/victim"}
	for name, stays := range map[string]string{"attacker": "", "victim": "waiting"} {
		makeCgroup(t, g, of[name])
		startIn(t, g, of[name], exec.Command(python, "-c", connectsAndEnds, l.Addr().String(), name, stays))
		t.Cleanup(func() { _ = os.WriteFile(g.root+of[name]+"/cgroup.kill", []byte("1"), 0) }) // with all its children
	}
	other := map[string]string{"attacker": of["victim"], "victim": of["attacker"], "waiting": of["attacker"]}
	told, taken := map[string]int{}, 0
	look := func(c *net.UnixConn) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(c.RemoteAddr().String(), "@"), "-")
		pid, _, _ := strings.Cut(rest, "-")
		if inCgroup(pid, other[name]) { // its number is one of the other's processes now
			taken++
		}
		got, err := g.Of(c)
		switch {
		case err == nil && got == of[name]:
			told[name]++
		case name == "waiting" || !errors.Is(err, ErrEnded):
			t.Errorf("%s is taken for %q: %v", c.RemoteAddr(), got, err)
		}
		_ = c.Close()
	}
	const late = 12 // how many may have come before one is looked at
	var line []*net.UnixConn
	n := 0
	for end := time.Now().Add(4 * time.Minute); n < rounds || (taken == 0 || told["waiting"] == 0) && time.Now().Before(end); {
		_ = l.SetDeadline(time.Now().Add(time.Minute))
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(c.RemoteAddr().String(), "@attacker") {
			n++
		}
		if line = append(line, c); len(line) > n%late {
			look(line[0])
			line = line[1:]
		}
	}
	for _, c := range line {
		look(c)
	}
	t.Logf("%d connections of a process that has ended; %d times its number was one of the other's when it was looked at; told: %v", n, taken, told)
	if taken == 0 || told["waiting"] == 0 {
		t.Errorf("nothing was tried: %d numbers were taken over, told: %v", taken, told)
	}
}

// shorten lets few connections wait for their accept, so that none is long ago where accepting is slow.
func shorten(t *testing.T, l *net.UnixListener) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err == nil {
		e := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 8) })
		err = errors.Join(err, e)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// inCgroup tells whether the process with that number now is in a cgroup.
func inCgroup(pid, path string) bool {
	f, err := os.Open("/proc/" + pid + "/cgroup")
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if here, ok := strings.CutPrefix(lines.Text(), "0::"); ok {
			return here == path
		}
	}
	return false
}
