package client_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/locksidecar/locksidecar/client"
)

// overGRPC makes the tests of this process use gRPC for sessions, and not lines.
var overGRPC = os.Getenv(grpcEnv) != ""

const grpcEnv = "CLIENT_TEST_GRPC"

// wire is how the tests dial.
func wire() []client.Option {
	if overGRPC {
		return []client.Option{client.WithGRPC()}
	}
	return nil
}

// TestAllOverGRPC runs all tests over gRPC, in a process of its own.
func TestAllOverGRPC(t *testing.T) {
	if overGRPC {
		t.Skip("this is that process")
	}
	args := []string{"-test.timeout=5m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	all := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	all.Env = append(os.Environ(), grpcEnv+"=1")
	if out, err := all.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
