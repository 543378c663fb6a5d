package backendtest

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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
