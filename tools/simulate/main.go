// Command simulate builds the tests of internal/simulation on a Go runtime whose dice
// are loaded, so that a seed gives the same steps in the same order each time, and runs
// them. What Go leaves to chance is then chance of the seed: the order of goroutines, of
// timers that are due together, of maps and of the cases of a select, and the random
// numbers of math/rand/v2.
//
// Nothing of it is installed: the changed files of the runtime are an overlay of this
// one build.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

func main() {
	seed := flag.Int64("seed", -1, "run this `seed` alone and print what happens; -1: run many")
	seeds := flag.Int("seeds", 10_000, "how `many`; 0: without end")
	first := flag.Int("first", -1, "the first `seed`; -1: 0, and without end any")
	jobs := flag.Int("jobs", 2, "how many processes")
	out := flag.String("o", "", "only build the tests, as this `file`")
	flag.Parse()
	if err := run(*out, *seed, *first, *seeds, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func run(out string, seed int64, first, seeds, jobs int) error {
	dir, err := os.MkdirTemp("", "simulate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := out
	if program == "" {
		program = filepath.Join(dir, "simulation.test")
	}
	if err := build(dir, program); err != nil || out != "" {
		return err
	}
	if seed >= 0 {
		return command(program, "-test.run=TestSimulation", fmt.Sprintf("-seed=%d", seed)).Run()
	}
	if err := command(program, "-test.run=TestReplay|TestBreaks").Run(); err != nil {
		return fmt.Errorf("the simulation cannot be trusted: %w", err)
	}
	const chunk = 500
	switch {
	case first < 0 && seeds == 0:
		first = rand.IntN(1 << 40) //nolint:gosec // not a secret
	case first < 0:
		first = 0
	}
	end := first + seeds
	next := make(chan int)
	failed := make(chan struct{})
	go func() {
		defer close(next)
		for at := first; seeds == 0 || at < end; at += chunk {
			select {
			case next <- at:
			case <-failed:
				return
			}
		}
	}()
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range jobs {
		all.Go(func() {
			for at := range next {
				n := chunk
				if seeds != 0 {
					n = min(chunk, end-at)
				}
				cmd := command(program, "-test.v", "-test.timeout=10m", "-test.run=TestSimulation", fmt.Sprintf("-first=%d", at), fmt.Sprintf("-seeds=%d", n))
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				mu.Lock()
				_, _ = os.Stdout.Write(summary(out.Bytes(), err))
				if err != nil {
					if errs == nil {
						close(failed)
					}
					errs = append(errs, fmt.Errorf("seeds %d to %d: %w", at, at+n-1, err))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// summary is what is worth reading of the output of a test: all of it when it fails.
func summary(out []byte, err error) []byte {
	if err != nil {
		return out
	}
	var lines []byte
	for line := range bytes.Lines(out) {
		if bytes.Contains(line, []byte("worlds")) {
			lines = append(lines, line...)
		}
	}
	return lines
}

func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...) //nolint:gosec,noctx // what was just built; its end is the end of this program
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// build makes the program.
func build(dir, program string) error {
	goroot, err := exec.Command("go", "env", "GOROOT").Output() //nolint:noctx // soon over
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	root, err := exec.Command("go", "env", "GOMOD").Output() //nolint:noctx // soon over
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	overlay, err := load(filepath.Join(strings.TrimSpace(string(goroot)), "src"), dir)
	if err != nil {
		return err
	}
	cmd := command("go", "test", "-c", "-vet=off", "-tags=simulate", "-overlay="+overlay, "-o", program, "./internal/simulation")
	cmd.Dir = filepath.Join(filepath.Dir(strings.TrimSpace(string(root))), "..", "..")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the simulation: %w", err)
	}
	return nil
}

// change is one place of Go's source.
type change struct{ file, old, new string }

var changes = []change{
	{"runtime/rand.go", "// rand32 is uint32(rand())", `// simulated is the state of the dice of bubbles, 0 for those of all goroutines.
//
//go:linkname simulated
var simulated uint64

// simulate throws the dice for a goroutine of a bubble.
//
//go:nosplit
func simulate(gp *g) (uint64, bool) {
	if simulated == 0 || gp == nil || gp.bubble == nil {
		return 0, false
	}
	simulated += 0x9e3779b97f4a7c15
	z := simulated
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31, true
}

// rand32 is uint32(rand())`},
	{"runtime/rand.go", "	mp := getg().m\n	c := &mp.chacha8\n", `	if x, ok := simulate(getg()); ok {
		return x
	}
	mp := getg().m
	c := &mp.chacha8
`},
	{"runtime/select.go", "		j := cheaprandn(uint32(norder + 1))\n", `		j := cheaprandn(uint32(norder + 1))
		if x, ok := simulate(gp); ok {
			j = uint32(x>>33) % uint32(norder+1)
		}
`},
	{"runtime/time.go", "			t.rand = cheaprand()\n", `			t.rand = cheaprand()
			if x, ok := simulate(getg().m.curg); ok {
				t.rand = uint32(x >> 33)
			}
`},
	{"runtime/proc.go", "	if randomizeScheduler && next && randn(2) == 0 {\n		next = false\n	}\n", `	if x, ok := simulate(gp); ok && x>>63 == 0 {
		next = false
	}
`},
	// A goroutine runs until it waits, however busy the machine is.
	{"runtime/proc.go", "const forcePreemptNS = 10 * 1000 * 1000", "const forcePreemptNS = 1 << 60"},
	// A map with pointers as keys has another order wherever they point: contexts end in
	// the order in which they were made.
	{"context/context.go", "	children map[canceler]struct{} ", "	children map[canceler]uint64 "},
	{"context/context.go", "p.children = make(map[canceler]struct{})", "p.children = make(map[canceler]uint64)"},
	{"context/context.go", "p.children[child] = struct{}{}", "p.children[child] = order.Add(1)"},
	{"context/context.go", "	for child := range c.children {\n", `	sorted := make([]canceler, 0, len(c.children))
	for child, n := range c.children {
		sorted = append(sorted, child)
		for i := len(sorted) - 1; i > 0 && n < c.children[sorted[i-1]]; i-- {
			sorted[i-1], sorted[i] = sorted[i], sorted[i-1]
		}
	}
	for _, child := range sorted {
`},
	{"context/context.go", "// A canceler is a context type", "var order atomic.Uint64\n\n// A canceler is a context type"},
}

// load writes the changed files of Go, and the list of them for -overlay.
func load(src, dir string) (overlay string, _ error) {
	replace := map[string]string{}
	texts := map[string]string{}
	for _, c := range changes {
		text, ok := texts[c.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(src, c.file)) //nolint:gosec // Go's own
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if strings.Count(text, c.old) != 1 {
			return "", fmt.Errorf("this version of Go has another %s: tools/simulate looks for %q", c.file, c.old)
		}
		texts[c.file] = strings.Replace(text, c.old, c.new, 1)
	}
	for file, text := range texts {
		at := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(src, file)] = at
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o600)
}
