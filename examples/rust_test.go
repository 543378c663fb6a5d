package examples

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

// buildRust builds the Rust client, its tests and its examples, once for a test process, and gives the
// programs by the names of their sources.
func buildRust(t *testing.T) map[string]string {
	t.Helper()
	needs(t, "cargo", "cargo")
	programs, err := rustBuilt()
	if err != nil {
		t.Fatal(err)
	}
	return programs
}

// rustProgram is a line with which cargo tells what it has built.
var rustProgram = regexp.MustCompile(`(?m)^ *Executable .*?(\w+)\.rs \((.+)\)$`)

var rustBuilt = sync.OnceValues(func() (map[string]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "cargo", "test", "--no-run")
	cmd.Dir = "rust"
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("build the Rust client: %w\n%s", err, out)
	}
	programs := make(map[string]string)
	for _, m := range rustProgram.FindAllSubmatch(out, -1) {
		if programs[string(m[1])], err = filepath.Abs(filepath.Join("rust", string(m[2]))); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"lib", "client", "contract", "crowd"} {
		if programs[name] == "" {
			return nil, fmt.Errorf("build the Rust client: cargo names no program of %s.rs:\n%s", name, out)
		}
	}
	for _, name := range []string{"list", "crowd"} { // cargo does not name these
		programs[name+" example"] = filepath.Join(filepath.Dir(programs["lib"]), "..", "examples", name)
	}
	return programs, nil
})

func TestRust(t *testing.T) {
	t.Parallel()
	env := stores(t)
	programs := buildRust(t)
	for _, name := range []string{"client", "contract", "crowd"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tap(t, "rust", env, programs[name])
		})
	}
	t.Run("units", func(t *testing.T) {
		t.Parallel()
		if out, ok := suite(t, "rust", env, programs["lib"]); !ok {
			t.Error(out)
		}
	})
	t.Run("docs", func(t *testing.T) { // they run what README shows
		t.Parallel()
		if out, ok := suite(t, "rust", append(env, serve(t).env()...), "cargo", "test", "--doc"); !ok {
			t.Error(out)
		}
	})
}
