package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// binary is a built test binary.
type binary struct {
	path  string
	of    pkg
	start time.Duration // what it takes beside its tests, such as to start a server
}

// unit is a test, or a part of one that takes long.
type unit struct {
	in      int // the binary
	name    string
	took    time.Duration
	reached map[int]bool // changes that it comes across
	kills   int
}

// bundle is a built test binary with the changes of a package in it.
type bundle struct {
	dir   string
	p     pkg
	o     options
	bins  []binary
	mu    *sync.Mutex // guards the kills of units
	units []*unit
}

// longUnit is what a test may take before its parts are run one by one.
const longUnit = 500 * time.Millisecond

// newBundle builds the schema of a package and finds out which test comes across which
// change. Changes that no schema can have are left without an id.
func newBundle(ctx context.Context, root, dir string, p pkg, with []pkg, o options, src *source, all []Mutant) (*bundle, error) {
	b := &bundle{dir: dir, p: p, o: o, bins: binaries(dir, append([]pkg{p}, with...)), mu: new(sync.Mutex)}
	for i := range all {
		if all[i].wrap != nil {
			all[i].id = i + 1
		}
	}
	for {
		bad, err := b.build(ctx, root, src, all)
		if err != nil {
			return nil, err
		}
		if bad == 0 {
			break
		}
	}
	return b, b.survey(ctx)
}

func binaries(dir string, of []pkg) []binary {
	var all []binary
	for i, p := range of {
		all = append(all, binary{path: filepath.Join(dir, fmt.Sprintf("test%d", i)), of: p})
	}
	return all
}

// compile builds the test binaries with an overlay.
func compile(ctx context.Context, root, overlay string, bins []binary) ([]byte, error) {
	for _, b := range bins {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay="+overlay, "-o", b.path, b.of.ImportPath) //nolint:gosec // go test
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return out, err
		}
	}
	return nil, nil
}

var compileError = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: .*$`)

// build builds the schema, and takes the changes out that do not compile in it: it
// returns how many those were.
func (b *bundle) build(ctx context.Context, root string, src *source, all []Mutant) (int, error) {
	replace := map[string]string{filepath.Join(b.p.Dir, "mutate__.go"): filepath.Join(b.dir, "mutate__.go")}
	if err := os.WriteFile(filepath.Join(b.dir, "mutate__.go"), fmt.Appendf(nil, schemaFile, src.types.Name(), len(all)+1), 0o600); err != nil {
		return 0, err
	}
	byFile := map[string][]*Mutant{}
	for i := range all {
		if m := &all[i]; m.id != 0 {
			path := filepath.Join(root, m.File)
			byFile[path] = append(byFile[path], m)
		}
	}
	for path, text := range src.text {
		to := filepath.Join(b.dir, filepath.Base(path))
		if err := os.WriteFile(to, []byte(unembed(b.p.Dir, schema(text, byFile[path]))), 0o600); err != nil {
			return 0, err
		}
		replace[path] = to
	}
	overlay := filepath.Join(b.dir, "overlay.json")
	j, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(overlay, j, 0o600); err != nil {
		return 0, err
	}
	out, err := compile(ctx, root, overlay, b.bins)
	if err == nil {
		return 0, nil
	}
	bad := 0
	for _, e := range compileError.FindAllStringSubmatch(string(out), -1) {
		line, err := strconv.Atoi(e[2])
		if err != nil {
			return 0, err
		}
		for path, ms := range byFile {
			if filepath.Base(path) != filepath.Base(e[1]) {
				continue
			}
			for _, m := range ms {
				from := 1 + bytes.Count(m.src[:m.wrap.start], []byte("\n"))
				to := from + bytes.Count(m.src[m.wrap.start:m.wrap.end], []byte("\n"))
				if m.id != 0 && from <= line && line <= to && to-from < 3 {
					m.id = 0
					bad++
				}
			}
		}
	}
	if bad == 0 { // a constant is needed elsewhere
		for i := range all {
			if m := &all[i]; m.id != 0 && m.wrap.consts != 0 {
				m.id = 0
				bad++
			}
		}
	}
	if bad == 0 {
		return 0, fmt.Errorf("build the schema of %s: %w\n%s", b.p.ImportPath, err, out)
	}
	return bad, nil
}

var passed = regexp.MustCompile(`(?m)^( *)--- (?:PASS|SKIP): (\S+) \(([0-9.]+)s\)$`)

// survey runs all tests one by one on the unchanged code.
func (b *bundle) survey(ctx context.Context) error {
	for i := range b.bins {
		units, err := b.list(ctx, i)
		if err != nil {
			return err
		}
		for _, u := range units {
			if err := b.measure(ctx, u); err != nil {
				fmt.Printf("%s is not used: it fails alone: %v\n", u.name, err)
				continue
			}
			b.units = append(b.units, u)
		}
		b.setOff(i)
	}
	return nil
}

// setOff takes the start of a binary off what its tests take: those that run together share it.
func (b *bundle) setOff(in int) {
	var own []*unit
	for _, u := range b.units {
		if u.in == in {
			own = append(own, u)
		}
	}
	if len(own) == 0 {
		return
	}
	least := slices.MinFunc(own, func(a, b *unit) int { return cmp.Compare(a.took, b.took) }).took
	b.bins[in].start = least
	for _, u := range own {
		u.took -= least
	}
}

// list runs the tests of a binary all together and gives them, and the parts of those
// that take long.
func (b *bundle) list(ctx context.Context, in int) ([]*unit, error) {
	out, err := b.exec(ctx, in, 10*time.Minute, nil, "-test.v")
	if err != nil {
		return nil, fmt.Errorf("%s fails without a change: %w\n%s", b.bins[in].of.ImportPath, err, out)
	}
	type node struct {
		took     float64
		children []string
	}
	nodes := map[string]*node{"": {took: longUnit.Seconds() + 1}}
	for _, m := range passed.FindAllStringSubmatch(string(out), -1) {
		took, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		nodes[m[2]] = &node{took: took}
		parent := m[2][:max(strings.LastIndex(m[2], "/"), 0)]
		for nodes[parent] == nil { // a name with a slash in it
			parent = parent[:max(strings.LastIndex(parent, "/"), 0)]
		}
		nodes[parent].children = append(nodes[parent].children, m[2])
	}
	var units []*unit
	var split func(name string)
	split = func(name string) {
		n := nodes[name]
		if name != "" && (n.took <= longUnit.Seconds() || len(n.children) == 0) {
			units = append(units, &unit{in: in, name: name})
			return
		}
		for _, c := range n.children {
			split(c)
		}
	}
	split("")
	return units, nil
}

// measure finds out how long a test takes and what it comes across.
func (b *bundle) measure(ctx context.Context, u *unit) error {
	log := filepath.Join(b.dir, "reached")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		return err
	}
	began := time.Now()
	out, err := b.exec(ctx, u.in, 5*time.Minute, []string{"MUTATE_REACHED=" + log}, "-test.v", "-test.run", pattern(u))
	switch {
	case err != nil:
		return fmt.Errorf("%w\n%s", err, out)
	case !bytes.Contains(out, []byte(": "+u.name+" (")):
		return errors.New("its name is another each time")
	}
	u.took, u.reached = time.Since(began), map[int]bool{}
	ids, err := os.ReadFile(log) //nolint:gosec // our own
	if err != nil {
		return err
	}
	for id := range strings.FieldsSeq(string(ids)) {
		n, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		u.reached[n] = true
	}
	return nil
}

// pattern is what -test.run needs for these.
func pattern(units ...*unit) string {
	var all []string
	for _, u := range units {
		var parts []string
		for part := range strings.SplitSeq(u.name, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}

// try runs the tests that come across a change, the likeliest to see it first.
func (b *bundle) try(ctx context.Context, m *Mutant, env ...string) error {
	b.mu.Lock()
	var units []*unit
	for _, u := range b.units {
		if m.id == 0 || u.reached[m.id] {
			units = append(units, u)
		}
	}
	kills := map[*unit]int{}
	for _, u := range units {
		kills[u] = u.kills
	}
	b.mu.Unlock()
	m.Tests = len(units)
	score := func(u *unit) float64 {
		return float64(1+kills[u]) / (float64(len(u.reached)+10) * (u.took.Seconds() + 0.02))
	}
	slices.SortStableFunc(units, func(a, b *unit) int { return cmp.Compare(score(b), score(a)) })
	for budget := 300 * time.Millisecond; len(units) > 0; budget *= 3 {
		var sum time.Duration
		n := 0
		for n < len(units) && (n == 0 || units[n].in == units[0].in && sum+units[n].took < budget) {
			sum += units[n].took
			n++
		}
		limit := 4*(b.bins[units[0].in].start+sum) + 5*time.Second
		if b.o.timeout != 0 {
			limit = b.o.timeout
		}
		out, err := b.exec(ctx, units[0].in, limit, env, "-test.failfast", "-test.run", pattern(units[:n]...))
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			m.Result = killed
			b.mu.Lock()
			for _, u := range units[:n] {
				if n == 1 || bytes.Contains(out, []byte("--- FAIL: "+u.name+" ")) {
					u.kills++
					m.By = u.name
				}
			}
			b.mu.Unlock()
			return nil
		case err != nil:
			return err
		}
		units = units[n:]
	}
	m.Result = survived
	return nil
}

// exec runs the test binary, and ends what it left behind.
func (b *bundle) exec(ctx context.Context, in int, limit time.Duration, env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	args = append(args, "-test.count=1", "-test.timeout="+limit.String())
	if b.o.short {
		args = append(args, "-test.short")
	}
	if b.o.skip != "" {
		args = append(args, "-test.skip="+b.o.skip)
	}
	if b.o.run != "" && !slices.Contains(args, "-test.run") {
		args = append(args, "-test.run="+b.o.run)
	}
	cmd := exec.CommandContext(ctx, b.bins[in].path, args...) //nolint:gosec // built above
	cmd.Dir = b.bins[in].of.Dir
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a child of the tests has kept their output open
	}
	return out, err
}
