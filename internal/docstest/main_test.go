package docstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

var bin string // the folder with the program

type tests struct{ m *testing.M }

func (t tests) Run() int {
	dir, err := os.MkdirTemp("", "locksidecar-docs-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = filepath.Join(dir, "bin")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags=-w", "-o", filepath.Join(bin, "locksidecar"), root+"/cmd/locksidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build` does
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	return t.m.Run()
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }
