package peercred

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connectsAndEnds has one process after the other connect and end at once, each with an early process id. The
// address that it connects from says whose it is, and no cgroup does.
const connectsAndEnds = `
import os, socket, sys
path, name, rounds, stay = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
ids = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
alive = []
n = 0
while n != rounds:
    n += 1
    os.pwrite(ids, b"1000", 0)
    pid = os.fork()
    if pid == 0:
        s = socket.socket(socket.AF_UNIX)
        s.bind("\0%s-%d-%d" % (name, os.getpid(), n))
        s.connect(path)
        if stay:
            import time
            time.sleep(stay)
        os._exit(0)
    alive.append(pid)
    if not stay or len(alive) > 3:
        os.waitpid(alive.pop(0), 0)
for pid in alive:
    os.waitpid(pid, 0)
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
	of := map[string]string{"attacker": path + "/attacker", "victim": path + "/victim"}
	for name, n := range map[string]int{"attacker": rounds, "victim": -1} {
		makeCgroup(t, g, of[name])
		stay := "0"
		if name == "victim" {
			stay = "0.003"
		}
		startIn(t, g, of[name], exec.Command(python, "-c", connectsAndEnds, l.Addr().String(), name, strconv.Itoa(n), stay))
	}
	other := map[string]string{"attacker": of["victim"], "victim": of["attacker"]}
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
		case !errors.Is(err, ErrEnded):
			t.Errorf("%s is taken for %q: %v", c.RemoteAddr(), got, err)
		}
		_ = c.Close()
	}
	const late = 12 // how many may have come before one is looked at
	var line []*net.UnixConn
	for n := 0; n < rounds; {
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
	t.Logf("%d connections of a process that has ended; %d times its number was one of the other's when it was looked at; told: %v", rounds, taken, told)
	if taken == 0 || told["victim"] == 0 {
		t.Errorf("nothing was tried: %d numbers were taken over, told: %v", taken, told)
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
