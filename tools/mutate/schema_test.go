package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = `package p

import (
	_ "embed"
	"errors"
	"strings"
	"time"
)

//go:embed answer.lua
var script string

const (
	limit = 3
	pause = 2 * time.Second
)

var errLimit = errors.New("limit")

type list []string

// Add is seen by a test in all that it does.
func (l *list) Add(s string) error {
	if len(*l) >= limit || s == "" {
		return errLimit
	}
	*l = append(*l, s)
	return nil
}

// Text is not seen where it is long.
func (l list) Text() string {
	s := strings.Join(l, "+")
	if len(s) > 100 {
		s = s[:100]
	}
	return s
}

// Unseen is called by no test.
func Unseen() time.Duration {
	const never = -1
	return pause * never
}

// Size needs a constant.
func Size() int {
	var a [limit]int
	return len(a)
}

func Script() string { return script }

// Both has no other operator.
func Both(a, b string) string { return a + b }
`

const moduleTest = `package p

import (
	"strings"
	"testing"
)

func TestAdd(t *testing.T) {
	var l list
	if l.Add("") == nil {
		t.Error("added nothing")
	}
	for range 3 {
		if err := l.Add("x"); err != nil {
			t.Error(err)
		}
	}
	if l.Add("x") == nil || l.Text() != "x+x+x" || Size() != 3 {
		t.Error(l)
	}
}

func TestScript(t *testing.T) {
	if !strings.Contains(Script(), "1 + 1") || Both("a", "b") != "ab" {
		t.Error(Script())
	}
}
`

// TestRun judges the changes of a package that exists for that.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module p\n\ngo 1.26.0\n", "p.go": module, "p_test.go": moduleTest, "answer.lua": "local x = 1 + 1\nlocal y = 7\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "git", "init", "-q")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Chdir(dir)
	results := filepath.Join(dir, "results.json")
	if err := run(t.Context(), options{jsonTo: results, jobs: 2, short: true, sample: 1}, []string{"."}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	var all []Mutant
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	by := map[string][]string{}
	for _, m := range all {
		by[m.Result] = append(by[m.Result], m.File+": "+m.Code+": "+m.What)
	}
	want := map[string][]string{
		survived: {
			"answer.lua: local y = 7: 7 becomes 8",
			"p.go: if len(s) > 100 {: > becomes >=",
			"p.go: if len(s) > 100 {: 100 becomes 101",
			"p.go: pause = 2 * time.Second: 2 becomes 3",
			"p.go: pause = 2 * time.Second: * becomes /",
			"p.go: return pause * never: * becomes /",
			"p.go: const never = -1: 1 becomes 2",
			"p.go: return pause * never: zero is returned in place of pause * never",
			"p.go: s = s[:100]: the statement is left out",
			"p.go: s = s[:100]: 100 becomes 101",
		},
		killed: {
			"p.go: limit = 3: 3 becomes 4",
			"p.go: if len(*l) >= limit || s == \"\" {: >= becomes >",
			"p.go: if len(*l) >= limit || s == \"\" {: || becomes &&",
			"p.go: if len(*l) >= limit || s == \"\" {: == becomes !=",
			"p.go: if len(*l) >= limit || s == \"\" {: the condition is turned round",
			"p.go: return errLimit: zero is returned in place of errLimit",
			"p.go: *l = append(*l, s): the statement is left out",
			"p.go: if len(s) > 100 {: the condition is turned round",
			"p.go: return s: zero is returned in place of s",
			"p.go: return len(a): zero is returned in place of len(a)",
			"p.go: func Script() string { return script }: zero is returned in place of script",
			"p.go: func Both(a, b string) string { return a + b }: zero is returned in place of a + b",
			"answer.lua: local x = 1 + 1: + becomes -",
			"answer.lua: local x = 1 + 1: 1 becomes 2",
			"answer.lua: local x = 1 + 1: 1 becomes 2",
		},
	}
	for _, what := range by[impossible] {
		if strings.Contains(what, "a + b") {
			t.Errorf("%s, and does not compile", what)
		}
	}
	for result := range want {
		got := by[result]
		slices.Sort(got)
		slices.Sort(want[result])
		if !slices.Equal(got, want[result]) {
			t.Errorf("%s:\n%q\nwant\n%q", result, got, want[result])
		}
	}
}

// TestNamesThatChange: a test whose name is another in the next run cannot be run alone.
func TestNamesThatChange(t *testing.T) {
	dir := t.TempDir()
	tests := filepath.Join(dir, "tests")
	if err := os.WriteFile(tests, []byte("#!/bin/sh\necho '--- PASS: TestA (0.00s)'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := &bundle{dir: dir, bins: []binary{{path: tests, of: pkg{Dir: dir}}}}
	if err := b.measure(t.Context(), &unit{name: "TestA"}); err != nil {
		t.Error(err)
	}
	if err := b.measure(t.Context(), &unit{name: "TestA/42"}); err == nil {
		t.Error("it passes, though it was not run")
	}
}
