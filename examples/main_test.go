package examples

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

var binary string // the program, for sidecars

type tests struct{ m *testing.M }

func (t tests) Run() int {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(s) { // as in the background of a script, or by nohup: the programs here do not
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	dir, err := os.MkdirTemp("", "locksidecar-examples-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "locksidecar")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags=-w", "-o", binary, "../cmd/locksidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build` does, but for what debuggers need
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	return t.m.Run()
}

func TestMain(m *testing.M) {
	testengine.SideBySide(6)
	goleak.VerifyTestMain(testengine.Main(tests{m}),
		// The pool of a client of Redis looks once a second whether a server that was down is
		// up again, and sees only then that it was closed meanwhile.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
