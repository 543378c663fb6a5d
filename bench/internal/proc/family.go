package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// FamilyCPU is the processor time that a process and its children have used so
// far, those that have ended too.
func FamilyCPU(pid int) (time.Duration, error) {
	own, err := statOf(strconv.Itoa(pid))
	if err != nil {
		return 0, err
	}
	all := own.times()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for the children of process %d: %w", pid, err)
	}
	for _, e := range entries {
		child, err := statOf(e.Name())
		if err != nil || child.parent() != strconv.Itoa(pid) {
			continue // no process, or one that has ended
		}
		all += child.times()
	}
	return all, nil
}

// stat are the fields of /proc/PID/stat behind the name, see proc(5).
type stat []string

func statOf(pid string) (stat, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat") //nolint:gosec // a path of the kernel's
	if err != nil {
		return nil, fmt.Errorf("look at process %s: %w", pid, err)
	}
	_, after, found := strings.Cut(string(b), ") ")
	f := strings.Fields(after)
	if !found || len(f) < 15 {
		return nil, fmt.Errorf("look at process %s: %q", pid, b)
	}
	return f, nil
}

func (s stat) parent() string { return s[1] }

// times are those of the process and of its children that were waited for.
func (s stat) times() time.Duration {
	var ticks int64
	for _, f := range s[11:15] {
		n, _ := strconv.ParseInt(f, 10, 64) // the kernel writes numbers
		ticks += n
	}
	return time.Duration(ticks) * tick
}
