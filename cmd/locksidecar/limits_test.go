package main

import (
	"fmt"
	"path/filepath"
	"testing"
)

// When CMD runs, the front and the supervisor have all threads that they will need: CMD may use
// up what its user may have (ulimit -u, pids.max), and Go ends a process that cannot have
// one more.
func TestThreadsAreReserved(t *testing.T) {
	side := serveProgram(t)
	dir := t.TempDir()
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `echo $$ >"$1/pid"; exec sleep 600`, "sh", dir)
	pidIn(t, dir+"/pid")
	for name, pid := range map[string]int{"front": run.cmd.Process.Pid, "supervisor": supervisorOf(t, run)} {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		if len(threads) <= 10 { // without a reserve 5 to 9 were seen
			t.Errorf("the %s has %d threads", name, len(threads))
		}
	}
}
