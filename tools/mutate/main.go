// Command mutate changes the code in one place at a time and runs the tests of its
// package: a change that no test sees is a missing test, or changes nothing. It writes
// nothing into the tree.
//
//	mutate [flags] ./lock/... ./backends/redislock
//
// The tests of a package are built once, with all changes in them (a schema), and each
// test is run alone once, to see how long it takes and which changes it comes across.
// Then each change is judged by the tests that come across it, the likeliest first. What
// cannot stand in a schema has a build of its own.
//
// It changes Go files and Lua scripts beside them. A change that cannot make a
// difference stands in equivalent.txt with the reason; its tests are run all the same.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed equivalent.txt
var equivalent string

// Mutant is one change, and what the tests said to it.
type Mutant struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	What   string `json:"what"`
	Code   string `json:"code"` // the line as it is
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"` // of an equivalent one
	Tests  int    `json:"tests"`            // that come across it
	By     string `json:"by,omitempty"`     // the test that saw it

	id         int    // in the schema; 0: it has a build of its own
	wrap       *wrap  // nil: it cannot stand in a schema
	src        []byte // of the file
	start, end int
	text       string
}

// The results of a mutant.
const (
	killed     = "killed"
	survived   = "survived"
	equal      = "equivalent"
	impossible = "does not compile"
)

func (m Mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.File, m.Line, m.What) }

// key names a mutant in the list of equivalents, wherever its line moves.
func (m Mutant) key() string { return m.File + " | " + m.Code + " | " + m.What }

type options struct {
	base    string
	jsonTo  string
	match   string
	run     string
	skip    string
	jobs    int
	timeout time.Duration
	short   bool
	with    string
	sample  int
}

func main() {
	var o options
	flag.StringVar(&o.base, "diff", "", "only lines that were changed since this `commit`")
	flag.StringVar(&o.jsonTo, "json", "", "write all results to this `file`")
	flag.StringVar(&o.match, "match", "", "only files whose path in the repository contains this `text`")
	flag.StringVar(&o.run, "run", "", "only tests that match, as go test -run")
	flag.StringVar(&o.skip, "skip", "", "no tests that match, as go test -skip")
	flag.IntVar(&o.jobs, "jobs", 1, "how many at the same time")
	flag.DurationVar(&o.timeout, "timeout", 0, "what the tests of a package may take; 0: five times what they take without a change, and 10s")
	flag.BoolVar(&o.short, "short", true, "run the short tests")
	flag.IntVar(&o.sample, "sample", 1, "only each `n`th change")
	flag.StringVar(&o.with, "with", "", "run the tests of these `packages`, too: a comma between them")
	flag.Parse()
	if err := run(context.Background(), o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// pkg is what go list says about a package.
type pkg struct {
	Dir, ImportPath                        string
	GoFiles, EmbedFiles                    []string
	TestGoFiles, XTestGoFiles, TestImports []string
}

func run(ctx context.Context, o options, args []string) error {
	known, err := equivalents()
	if err != nil {
		return err
	}
	root, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	pkgs, err := list(ctx, root, args)
	if err != nil {
		return err
	}
	var with []pkg
	if o.with != "" {
		if with, err = list(ctx, root, strings.Split(o.with, ",")); err != nil {
			return err
		}
	}
	var all []Mutant
	for _, p := range pkgs {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		src, found, err := mutants(ctx, root, p, o)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			continue
		}
		if err := judge(ctx, root, p, with, o, known, src, found); err != nil {
			return err
		}
		report(p.ImportPath, found)
		all = append(all, found...)
	}
	report("all", all)
	if o.base == "" && o.match == "" && o.sample <= 1 {
		stale(root, pkgs, known, all)
	}
	if o.jsonTo == "" {
		return nil
	}
	b, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(o.jsonTo, append(b, '\n'), 0o600)
}

// equivalents reads the list: file | line | change | reason.
func equivalents() (map[string]string, error) {
	known := map[string]string{}
	for line := range strings.Lines(equivalent) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndex(line, " | ")
		if strings.Count(line, " | ") < 3 {
			return nil, fmt.Errorf("equivalent.txt: %q is not file | code | change | reason", line)
		}
		known[line[:i]] = line[i+3:]
	}
	return known, nil
}

func list(ctx context.Context, root string, args []string) ([]pkg, error) {
	out, err := output(ctx, root, "go", append([]string{"list", "-json=Dir,ImportPath,GoFiles,EmbedFiles,TestGoFiles,XTestGoFiles"}, args...)...)
	if err != nil {
		return nil, err
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

// mutants lists the changes of a package.
func mutants(ctx context.Context, root string, p pkg, o options) (*source, []Mutant, error) {
	s, err := load(ctx, root, p)
	if err != nil {
		return nil, nil, err
	}
	var all []Mutant
	for _, name := range slices.Concat(p.GoFiles, p.EmbedFiles) {
		path := filepath.Join(p.Dir, name)
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, nil, err
		}
		if filepath.Ext(name) != ".go" && filepath.Ext(name) != ".lua" || !strings.Contains(rel, o.match) {
			continue
		}
		src, err := os.ReadFile(path) //nolint:gosec // a file of the tree
		if err != nil {
			return nil, nil, err
		}
		var found []Mutant
		if filepath.Ext(name) == ".lua" {
			found = inLua(src)
		} else {
			found = inFile(s.fset, s.files[path], src, s.types, s.info)
		}
		var touched map[int]bool
		if o.base != "" {
			if touched, err = changed(ctx, root, o.base, path); err != nil {
				return nil, nil, err
			}
		}
		lines := bytes.Split(src, []byte("\n"))
		for _, m := range found {
			if o.base != "" && !touched[m.Line] {
				continue
			}
			m.src = src
			m.File, m.Code = rel, strings.TrimSpace(string(lines[m.Line-1]))
			all = append(all, m)
		}
	}
	var some []Mutant
	for i := range all {
		if i%max(o.sample, 1) == 0 {
			some = append(some, all[i])
		}
	}
	return s, some, nil
}

// changed are the lines of a file that were changed since a commit.
func changed(ctx context.Context, root, base, path string) (map[int]bool, error) {
	out, err := output(ctx, root, "git", "diff", "-U0", base, "--", path)
	if err != nil {
		return nil, err
	}
	lines := map[int]bool{}
	for l := range strings.Lines(out) {
		var from, n int
		_, after, ok := strings.Cut(l, " +")
		if !strings.HasPrefix(l, "@@") || !ok {
			continue
		}
		if c, _ := fmt.Sscanf(after, "%d,%d", &from, &n); c == 1 {
			n = 1
		}
		for i := range n {
			lines[from+i] = true
		}
	}
	return lines, nil
}

// judge runs the tests on each change, and prints those that no test has seen.
func judge(ctx context.Context, root string, p pkg, with []pkg, o options, known map[string]string, src *source, all []Mutant) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b, err := newBundle(ctx, root, dir, p, with, o, src, all)
	if err != nil {
		return err
	}
	next := make(chan *Mutant)
	go func() {
		defer close(next)
		for i := range all {
			next <- &all[i]
		}
	}()
	var jobs sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range o.jobs {
		jobs.Go(func() {
			for m := range next {
				err := b.judge(ctx, root, m)
				mu.Lock()
				if err != nil && failed == nil {
					failed = err
				}
				if reason, ok := known[m.key()]; ok && m.Result == survived {
					m.Result, m.Reason = equal, reason
				}
				if m.Result == survived {
					fmt.Printf("%v\n\t%s\n", m, m.Code)
				}
				mu.Unlock()
			}
		})
	}
	jobs.Wait()
	return failed
}

// judge runs the tests on a change: in the schema, as a script beside it, or in a build
// of its own.
func (b *bundle) judge(ctx context.Context, root string, m *Mutant) error {
	if m.id != 0 {
		return b.try(ctx, m, "MUTATE_ID="+strconv.Itoa(m.id))
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(root, m.File)
	mutated := slices.Concat(m.src[:m.start], []byte(m.text), m.src[m.end:])
	file, overlay := filepath.Join(dir, filepath.Base(path)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, mutated, 0o600); err != nil {
		return err
	}
	if filepath.Ext(path) == ".lua" {
		return b.try(ctx, m, "MUTATE_EMBED="+path, "MUTATE_WITH="+file)
	}
	j, err := json.Marshal(map[string]any{"Replace": map[string]string{path: file}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, j, 0o600); err != nil {
		return err
	}
	own := *b
	own.bins = slices.Clone(b.bins)
	for i := range own.bins {
		own.bins[i].path = filepath.Join(dir, filepath.Base(own.bins[i].path))
	}
	if _, err := compile(ctx, root, overlay, own.bins); err != nil {
		m.Result = impossible
		return nil
	}
	return own.try(ctx, m)
}

// stale prints what the list has for these packages and nobody can do to their code, or
// what a test sees.
func stale(root string, pkgs []pkg, known map[string]string, all []Mutant) {
	made := map[string]bool{}
	for _, m := range all {
		made[m.key()] = made[m.key()] || m.Result == equal
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		file, _, _ := strings.Cut(key, " | ")
		of := func(p pkg) bool { return filepath.Join(root, filepath.Dir(file)) == p.Dir }
		if !made[key] && slices.ContainsFunc(pkgs, of) {
			fmt.Printf("equivalent.txt has what a test sees, or what is not there: %s\n", key)
		}
	}
}

func report(name string, all []Mutant) {
	n := map[string]int{}
	for _, m := range all {
		n[m.Result]++
	}
	seen, of := n[killed], n[killed]+n[survived]
	if of == 0 {
		return
	}
	fmt.Printf("%s: %d of %d changes are seen by a test (%.0f %%); %d are equivalent, %d do not compile\n",
		name, seen, of, 100*float64(seen)/float64(of), n[equal], n[impossible])
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // go and git
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}
