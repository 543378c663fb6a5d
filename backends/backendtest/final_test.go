package backendtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBrokenLawIsFinal: `make test` fails where a test has found a broken law, also if that test
// passed when it was run again.
func TestBrokenLawIsFinal(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("no jq on this machine: make test installs it")
	}
	type event struct{ Action, Package, Test, Output string }
	const two = "    load.go:35: broken law: a writer beside 1 writers\n"
	for what, tt := range map[string]struct {
		events []event
		want   string // what is printed names it; empty: nothing is printed
	}{
		"nothing failed":               {[]event{{"pass", "p", "TestA", ""}}, ""},
		"it failed":                    {[]event{{"output", "p", "TestA", two}, {"fail", "p", "TestA", ""}}, "p TestA"},
		"it passed when it ran again":  {[]event{{"output", "p", "TestA", two}, {"fail", "p", "TestA", ""}, {"pass", "p", "TestA", ""}}, "p TestA"},
		"a test of the test":           {[]event{{"output", "p", "TestA", two}, {"pass", "p", "TestA", ""}}, ""},
		"another test of that name":    {[]event{{"output", "p", "TestA", two}, {"pass", "p", "TestA", ""}, {"fail", "q", "TestA", ""}}, ""},
		"something else was not right": {[]event{{"output", "p", "TestA", "    x.go:1: too late\n"}, {"fail", "p", "TestA", ""}}, ""},
		"a package did not build":      {[]event{{"output", "p", "", two}, {"fail", "p", "", ""}}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "test.json")
			f, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, e := range tt.events {
				if err := json.NewEncoder(f).Encode(e); err != nil {
					t.Fatal(err)
				}
			}
			said, err := exec.Command("../../scripts/broken-laws", file).CombinedOutput()
			if (err != nil) != (tt.want != "") || !strings.Contains(string(said), tt.want) {
				t.Errorf("got %v, %q, want %q", err, said, tt.want)
			}
		})
	}
}
