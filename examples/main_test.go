package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

var binary string // the program, for sidecars

type tests struct{ m *testing.M }

func (t tests) Run() int {
	dir, err := os.MkdirTemp("", "locksidecar-examples-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "locksidecar")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", binary, "../cmd/locksidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build` does
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	return t.m.Run()
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testengine.Main(tests{m}),
		// The pool of a client of Redis looks once a second whether a server that was down is
		// up again, and sees only then that it was closed meanwhile.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
