package disttest

import (
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/tools/release/pyenv"
)

const stubsApp = `
import sys
import grpc
import locksidecar
from locksidecar.v1 import locksidecar_pb2, locksidecar_pb2_grpc

with grpc.insecure_channel("unix:" + locksidecar.default_socket()) as channel:
    api = locksidecar_pb2_grpc.LockSidecarStub(channel)
    for event in api.Hold(locksidecar_pb2.AcquireRequest(resource="orders/42"), wait_for_ready=True):
        if event.HasField("granted"):
            print("held", event.granted.fence, flush=True)
            sys.stdin.read()
            break
`

// A client of another language is made of the descriptors alone, with all that they import. In
// Python it is a package beside our own client.
func TestStubs(t *testing.T) {
	python, err := pyenv.Interpreter(t.Context(), "stubs.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := files(t, map[string]string{"app.py": stubsApp})
	run(t, dir, python, "-m", "grpc_tools.protoc", "--descriptor_set_in="+artifact(t, "locksidecar_%s_api.binpb"),
		"--python_out=.", "--grpc_python_out=.", "locksidecar/v1/locksidecar.proto")
	client := filepath.Join(dir, "client")
	run(t, dir, python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--target", client, artifact(t, "locksidecar-%s-py3-none-any.whl"))
	t.Setenv("PYTHONPATH", client)
	holds(t, dir, python, "app.py")
}
