package supervise

import (
	"os"
	"os/exec"
	"testing"
)

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		stat          string
		state         byte
		parent, group int
		ok            bool
	}{
		{"42 (sh) S 7 9 9 0 -1", 'S', 7, 9, true},
		{"42 (a) Z 1 (b)) R 7 9 9 0", 'R', 7, 9, true}, // a name can be anything
		{"42 (sh) S 7", 0, 0, 0, false},
		{"42 sh S 7 9", 0, 0, 0, false},
		{"42 (sh) S x 9", 0, 0, 0, false},
		{"", 0, 0, 0, false},
	} {
		state, parent, group, ok := parseStat([]byte(c.stat))
		if ok != c.ok || (ok && (state != c.state || parent != c.parent || group != c.group)) {
			t.Errorf("parseStat(%q) = %c %d %d %t", c.stat, state, parent, group, ok)
		}
	}
}

func TestDescendants(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var grandchild int
	eventually(t, "the child and the grandchild are there", func() bool {
		tree, err := descendants()
		if err != nil {
			t.Fatal(err)
		}
		child := false
		for _, d := range tree {
			_, parent, _, _ := readStat(d.pid)
			child = child || d.pid == cmd.Process.Pid
			if parent == cmd.Process.Pid {
				grandchild = d.pid
			}
		}
		return child && grandchild != 0
	})
	p, err := os.FindProcess(grandchild)
	if err == nil {
		_ = p.Kill()
	}
}
