package supervise

import (
	"os"
	"os/exec"
	"testing"
)

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		text string
		want stat
		ok   bool
	}{
		{"42 (sh) S 7 9 9 0 -1", stat{42, 7, 9, 'S', "sh"}, true},
		{"42 (a) Z 1 (b)) R 7 9 9 0", stat{42, 7, 9, 'R', "a) Z 1 (b)"}, true}, // a name can be anything
		{"42 (sh) S 7", stat{}, false},
		{"42 sh S 7 9", stat{}, false},
		{"42 (sh) S x 9", stat{}, false},
		{"", stat{}, false},
	} {
		got, ok := parseStat([]byte(c.text))
		if ok != c.ok || (ok && got != c.want) {
			t.Errorf("parseStat(%q) = %+v %t", c.text, got, ok)
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
			child = child || d.pid == cmd.Process.Pid
			if d.parent == cmd.Process.Pid {
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
