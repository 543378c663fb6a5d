package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// tree is a process and all below it, as the control group of a service has them.
func tree(t *testing.T, pid int) []int {
	t.Helper()
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		text, _ := os.ReadFile(name) // it may have ended
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		child, _ := strconv.Atoi(strings.Split(name, "/")[2]) // digits, by the pattern
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// killModes are those of systemd: who gets SIGTERM first, and who SIGKILL when the time
// for that is over.
var killModes = []struct {
	name       string
	term, kill func(all []int) []int
}{
	{"control-group", everybody, everybody},
	{"mixed", mainOnly, everybody},
	{"process", mainOnly, mainOnly},
	{"control-group, the last first", backwards, backwards},
}

func everybody(all []int) []int { return all }
func mainOnly(all []int) []int  { return all[:1] }

func backwards(all []int) []int {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

// A service is stopped whose CMD does not end for SIGTERM: it keeps its lock until
// SIGKILL, and then it is all over, in every KillMode.
func TestServiceIsKilled(t *testing.T) {
	for _, mode := range killModes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			side := serveProgram(t, "--ttl", "1m")
			run, log := startWorker(t, "--socket", side.socket, "a")
			all := tree(t, run.cmd.Process.Pid)
			next := startSuccessor(t, "--socket", side.socket, "a")
			c := dial(t, side)
			eventually(t, "the successor waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
			for _, pid := range mode.term(all) {
				_ = syscall.Kill(pid, syscall.SIGTERM) // a sleep may have ended
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			eventually(t, "CMD has SIGTERM", func() bool { _, err := os.Stat(log + ".term"); return err == nil })
			if h, w := status(t, c, "a"); h != 1 || w != 1 || run.ended() {
				t.Errorf("%d hold and %d wait, ended %t", h, w, run.ended())
			}
			for _, pid := range mode.kill(all) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			if code := run.wait(); code != -1 && code != exitSignalled+int(syscall.SIGKILL) { // CMD's, where that was killed first
				t.Errorf("status %d", code)
			}
			if len(mode.kill(all)) == 1 {
				checkSuccession(t, next, log) // patience is less than the TTL
				return
			}
			// Here the sidecar sees the supervisor die perhaps before the last of CMD does.
			if code := next.wait(); code != 0 {
				t.Errorf("the successor's status is %d", code)
			}
			for _, pid := range workerPIDs(log) {
				eventually(t, "the worker is dead", func() bool { return !alive(pid) })
			}
		})
	}
}

// A service is stopped whose CMD ends for SIGTERM: it has its time to do so, its status
// is that of the service, and the lock is free.
func TestServiceStops(t *testing.T) {
	for _, mode := range killModes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			side := serveProgram(t, "--ttl", "1m")
			dir := t.TempDir()
			run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c",
				`trap 'echo asked; until [ -e "$1/go" ]; do sleep 0.01; done; exit 7' TERM; touch "$1/works"; while :; do sleep 0.01; done`, "sh", dir)
			eventually(t, "CMD works", func() bool { _, err := os.Stat(dir + "/works"); return err == nil })
			for _, pid := range mode.term(tree(t, run.cmd.Process.Pid)) {
				_ = syscall.Kill(pid, syscall.SIGTERM) // a sleep may have ended
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			eventually(t, "CMD is asked to end", func() bool { return strings.HasPrefix(run.out.String(), "asked\n") })
			if h, _ := status(t, dial(t, side), "a"); h != 1 {
				t.Error("the lock is free before CMD has ended")
			}
			touch(t, dir+"/go")
			if code := run.wait(); code != 7 {
				t.Errorf("status %d", code)
			}
			if h, _ := status(t, dial(t, side), "a"); h != 0 {
				t.Error("the lock is held")
			}
		})
	}
}
