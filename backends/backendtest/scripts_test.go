package backendtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestSummary: the last line of `make test` counts a test that ran twice once.
func TestSummary(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("no jq on this machine: make test installs it")
	}
	dir := t.TempDir()
	type event struct{ Action, Package, Test string }
	for name, events := range map[string][]event{
		"a.json": {
			{"run", "p", "TestA"}, {"fail", "p", "TestA"}, {"pass", "p", "TestB"}, {"skip", "p", "TestC"},
			{"fail", "p", "TestD"}, {"fail", "p", ""}, {"pass", "p", "TestA"}, {"fail", "p", "TestD"}, {"fail", "p", ""},
		},
		"b.json": {{"pass", "p", "TestA"}, {"pass", "p", ""}},
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, e := range events {
			if err := json.NewEncoder(f).Encode(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command("../../scripts/test-summary", filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json"), filepath.Join(dir, "c.json"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	const want = "DONE 5 tests, 1 skipped, 1 failed, 2 failed in the first run\n"
	if err != nil || string(out) != want {
		t.Errorf("got %v, %q, want %q", err, out, want)
	}
	if !strings.Contains(errs.String(), "c.json: its tests did not run") {
		t.Errorf("of a file that is not there it says %q", &errs)
	}
}

// TestEndedEarly: `make test` fails where tests did not run because the program with them ended early, though the one that ran then passed
// when it was run again. Where the race detector has crashed, all of them run once more.
func TestEndedEarly(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("no jq on this machine: make test installs it")
	}
	type event struct{ Action, Package, Test, Output string }
	whole := []event{{"run", "p", "TestA", ""}, {"run", "p", "TestB", ""}, {"pass", "p", "TestB", ""}, {"skip", "p", "TestA", ""}, {"pass", "p", "", ""}}
	early := func(said string) []event {
		return []event{
			{"run", "q", "TestA", ""}, {"run", "q", "TestA/b", ""}, {"pass", "q", "TestA/b", ""}, {"output", "q", "TestA", said}, {"fail", "q", "", ""},
			{"run", "q", "TestA", ""}, {"pass", "q", "TestA", ""}, {"pass", "q", "", ""}, // when it was run again
		}
	}
	crashed := early("SIGSEGV: segmentation violation\n")
	for what, tt := range map[string]struct {
		runs [][]event // the first may fail
		want string    // what is printed names it; empty: it does not fail
	}{
		"all tests ran":        {[][]event{whole}, ""},
		"it ended":             {[][]event{slices.Concat(whole, early("fatal error: all goroutines are asleep\n"))}, "did not run: q\n"},
		"the detector crashed": {[][]event{slices.Concat(whole, crashed), {{"run", "q", "TestA", ""}, {"pass", "q", "TestA", ""}, {"pass", "q", "", ""}}}, ""},
		"it crashed twice":     {[][]event{crashed, crashed}, "did not run: q\n"},
		"another one ended":    {[][]event{slices.Concat(crashed, []event{{"run", "r", "TestA", ""}, {"fail", "r", "", ""}}), whole}, "did not run: r\n"},
		"it broke a law":       {[][]event{crashed, {{"output", "q", "TestA", "broken law: two"}, {"fail", "q", "TestA", ""}, {"pass", "q", "TestA", ""}}}, "q TestA"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for i, run := range tt.runs {
				f, err := os.Create(filepath.Join(dir, fmt.Sprintf("run%d", i+1)))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for _, e := range run {
					if err := json.NewEncoder(f).Encode(e); err != nil {
						t.Fatal(err)
					}
				}
			}
			const script = `#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >>asked
while [ "$1" != --jsonfile ]; do shift; done
mv run$(wc -l <asked) "$2"`
			if err := os.WriteFile(filepath.Join(dir, "gotestsum"), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "test.json")
			cmd := exec.Command("../../scripts/run-tests", file, "./p ./q", "-race", "-run", "a b")
			cmd.Env = append(os.Environ(), "GOTESTSUM="+filepath.Join(dir, "gotestsum"), "RERUNS=2")
			said, err := cmd.CombinedOutput()
			if (err != nil) != (tt.want != "") || !strings.Contains(string(said), tt.want) {
				t.Errorf("got %v, %q, want %q", err, said, tt.want)
			}
			asked, err := os.ReadFile(filepath.Join(dir, "asked"))
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Split(strings.TrimSpace(string(asked)), "\n")
			if len(all) != len(tt.runs) || !strings.HasSuffix(all[0], " --packages ./p ./q -- -race -run a b") {
				t.Errorf("these ran: %q", all)
			}
			if len(all) == 2 && !strings.HasSuffix(all[1], " --packages q -- -race -run a b") {
				t.Errorf("then this ran: %s", all[1])
			}
			kept, err := os.ReadFile(file)
			if want := len(slices.Concat(tt.runs...)); err != nil || strings.Count(string(kept), "\n") != want {
				t.Errorf("the file has %d lines (%v), want %d", strings.Count(string(kept), "\n"), err, want)
			}
		})
	}
}

// TestBusy: `make test-busy` ends with the first failure, and also where nothing was beside the tests.
func TestBusy(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		stress, run string // scripts
		runs        int    // of the command
		ok          bool
	}{
		"all pass":               {"exec sleep 60", "true", 3, true},
		"the second fails":       {"exec sleep 60", "[ $(wc -l <runs) != 2 ]", 2, false},
		"nothing is beside them": {"exit 1", "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done", 1, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, script := range map[string]string{
				"stress-ng": "echo $$ >pid\necho $* >>arguments\n" + tt.stress,
				"tests":     "until [ -e arguments ]; do sleep 0.01; done\necho >>runs\n" + tt.run,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			script, err := filepath.Abs("../../scripts/busy")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(script, "3", "./tests")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "STRESS=--cpu 5")
			out, err := cmd.CombinedOutput()
			if (err == nil) != tt.ok {
				t.Errorf("%v\n%s", err, out)
			}
			runs, err := os.ReadFile(filepath.Join(dir, "runs"))
			if err != nil || len(runs) != tt.runs {
				t.Errorf("the tests ran %d times, want %d: %v", len(runs), tt.runs, err)
			}
			arguments, err := os.ReadFile(filepath.Join(dir, "arguments"))
			if want := "--quiet --cpu 5\n"; err != nil || string(arguments) != want {
				t.Errorf("stress-ng had the arguments %q, want %q: %v", arguments, want, err)
			}
		})
	}
}

// TestTurn: of six commands two run at a time, the status of each is passed on, and what one leaves behind keeps no place.
func TestTurn(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("no flock(1) on this machine")
	}
	script, err := filepath.Abs("../../scripts/turn")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const command = `echo + >>log; sleep 600 >/dev/null 2>&1 & echo $! >>left; sleep 0.1; echo - >>log; exit 7`
	var turns sync.WaitGroup
	for range 6 {
		turns.Go(func() {
			cmd := exec.Command(script, "places", "2", "sh", "-c", command)
			cmd.Dir = dir
			var status *exec.ExitError
			if out, err := cmd.CombinedOutput(); !errors.As(err, &status) || status.ExitCode() != 7 {
				t.Errorf("%v, want status 7\n%s", err, out)
			}
		})
	}
	turns.Wait()
	left, err := os.ReadFile(filepath.Join(dir, "left"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(left)) {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	running, most := 0, 0
	for _, line := range strings.Fields(string(log)) {
		running += map[string]int{"+": 1, "-": -1}[line]
		most = max(most, running)
	}
	if most != 2 || running != 0 {
		t.Errorf("%d ran at a time, and %d at the end, want 2 and 0: %q", most, running, log)
	}
}
