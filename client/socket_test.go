package client

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestDefaultSocket(t *testing.T) {
	base, err := os.MkdirTemp("", "lsd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	var (
		system = filepath.Join(base, "run", "locksidecar")
		tmp    = filepath.Join(base, "tmp")
		uid    = os.Getuid()
	)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(tmp, 0o700))
	env := map[string]string{}
	check := func(want string) {
		t.Helper()
		got, err := defaultSocket(func(k string) string { return env[k] }, system, tmp, uid)
		if err != nil || strings.TrimPrefix(got, base) != want {
			t.Errorf("%s %v, want %s", got, err, want)
		}
	}
	private := "/tmp/locksidecar-" + strconv.Itoa(uid) + "/locksidecar.sock"
	check(private) // there is not even a /run

	must(os.Mkdir(filepath.Dir(system), 0o700))
	check("/run/locksidecar/locksidecar.sock") // it can be made there
	must(os.Mkdir(system, 0o700))
	check("/run/locksidecar/locksidecar.sock")
	l, err := net.Listen("unix", filepath.Join(system, socketName))
	must(err)
	check("/run/locksidecar/locksidecar.sock") // it is there
	must(l.Close())

	must(os.RemoveAll(filepath.Dir(system)))
	env["XDG_RUNTIME_DIR"] = filepath.Join(base, "xdg")
	check("/xdg/locksidecar/locksidecar.sock")
	delete(env, "XDG_RUNTIME_DIR")

	dir := filepath.Dir(filepath.Join(base, private))
	must(os.Mkdir(dir, 0o700))
	check(private)
	must(os.Chmod(dir, 0o777))
	if got, err := defaultSocket(func(string) string { return "" }, system, tmp, uid); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "mode 777)") || !strings.Contains(err.Error(), SocketEnv) {
		t.Errorf("a directory that anybody can write to: %q %v", got, err)
	}
	must(os.Chmod(dir, 0o700))
	if got, err := defaultSocket(func(string) string { return "" }, system, tmp, uid+1); err != nil || !strings.Contains(got, strconv.Itoa(uid+1)) {
		t.Errorf("another user: %q %v", got, err)
	}
	env[SocketEnv] = "/somewhere"
	got, err := defaultSocket(func(k string) string { return env[k] }, system, tmp, uid)
	if err != nil || got != "/somewhere" {
		t.Errorf("%q %v", got, err)
	}
}
