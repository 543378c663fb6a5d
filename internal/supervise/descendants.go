package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lock"
)

// treePause is how often a tree that is to end is looked at.
const treePause = 5 * time.Millisecond

// AdoptOrphans makes this process the parent of every descendant that loses its
// own. So what has no parent here has ended: see noChildren.
func AdoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// stat is what /proc tells about a process.
type stat struct {
	pid, parent, group int
	state              byte
	name               string
}

func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' }

// Survivor is a process that could not be ended.
type Survivor struct {
	PID  int
	Name string
	Why  string
}

func (s Survivor) String() string { return fmt.Sprintf("%d (%s): %s", s.PID, s.Name, s.Why) }

// errForeignProc: /proc has the pids of another namespace than ours.
var errForeignProc = errors.New("/proc is that of another PID namespace")

// processes are the pids in /proc.
func processes() ([]int, error) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, errors.Join(errForeignProc, err)
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// descendants are all processes below this one that have not ended. One that loses
// its parent during the look may be missed.
func descendants() ([]stat, error) {
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	children := map[int][]stat{}
	for _, pid := range pids {
		if s, ok := readStat(pid); ok { // else it has ended meanwhile
			children[s.parent] = append(children[s.parent], s)
		}
	}
	var found []stat
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			next = append(next, c.pid)
			if !c.ended() {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

// readStat tells about one process; not ok: it is not there.
func readStat(pid int) (s stat, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") //nolint:gosec // a number
	if err != nil {
		return stat{}, false
	}
	return parseStat(text)
}

// parseStat reads /proc/PID/stat, see proc(5). The name, in parentheses, may
// have anything in it, also parentheses.
func parseStat(text []byte) (s stat, ok bool) {
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if begin < 1 || end < begin {
		return stat{}, false
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 3 || len(fields[0]) != 1 {
		return stat{}, false
	}
	var err1, err2, err3 error
	s.name, s.state = string(text[begin+1:end]), fields[0][0]
	s.pid, err1 = strconv.Atoi(string(text[:begin-1]))
	s.parent, err2 = strconv.Atoi(string(fields[1]))
	s.group, err3 = strconv.Atoi(string(fields[2]))
	return s, err1 == nil && err2 == nil && err3 == nil
}

// carriers are processes that are no descendants and have mark in an environment
// variable of that name: what the program had started by somebody else, such as at(1).
func carriers(name, mark string) []stat {
	pids, err := processes()
	if err != nil || mark == "" {
		return nil
	}
	var found []stat
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || pid == os.Getpid() {
			continue
		}
		for v := range strings.SplitSeq(string(text), "\x00") {
			if value, ok := strings.CutPrefix(v, name+"="); ok && slices.Contains(strings.Split(value, ","), mark) {
				if s, ok := readStat(pid); ok && !s.ended() {
					found = append(found, s)
				}
			}
		}
	}
	return found
}

// killAll kills what list gives, again and again, for what is killed may just have
// started something, until reap says that nothing is left. At giveUp it returns what
// is left.
func killAll(giveUp time.Duration, reap func() (none bool), list func() []stat) []Survivor {
	for {
		var left []Survivor
		for _, s := range list() {
			why := "it does not end"
			if err := syscall.Kill(s.pid, syscall.SIGKILL); err != nil {
				why = err.Error()
			}
			left = append(left, Survivor{PID: s.pid, Name: s.name, Why: why})
		}
		if reap() && len(left) == 0 {
			return nil
		}
		if lock.BootTime() >= giveUp {
			return left
		}
		time.Sleep(treePause)
	}
}

// KillAll kills everything below this process, and returns what is left at the moment
// giveUp of the boot-time clock.
func KillAll(giveUp time.Duration) []Survivor {
	return killAll(giveUp, reapAll, func() []stat {
		tree, _ := descendants() // no /proc: then the kernel ends the program itself
		return tree
	})
}

// reapAll takes the children that have ended, and reports whether there are no
// others.
func reapAll() (none bool) {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR), err == nil && pid > 0:
		default:
			return errors.Is(err, syscall.ECHILD)
		}
	}
}
