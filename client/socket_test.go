package client

import (
	"fmt"
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

	must(os.RemoveAll(system))
	must(os.WriteFile(system, nil, 0o600))
	check(private) // it is no directory

	must(os.RemoveAll(filepath.Dir(system)))
	env["XDG_RUNTIME_DIR"] = filepath.Join(base, "xdg")
	check("/xdg/locksidecar/locksidecar.sock")
	delete(env, "XDG_RUNTIME_DIR")

	dir := filepath.Dir(filepath.Join(base, private))
	must(os.Mkdir(dir, 0o700))
	check(private)
	must(os.Chmod(dir, 0o701)) // who may only look is no danger
	check(private)
	refused := func(what, words string) {
		t.Helper()
		got, err := defaultSocket(func(string) string { return "" }, system, tmp, uid)
		if err == nil || got != "" || !strings.HasPrefix(err.Error(), "find socket: ") || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %q %v", what, got, err)
		}
	}
	for _, mode := range []os.FileMode{0o777, 0o720, 0o702} {
		must(os.Chmod(dir, mode))
		refused("a directory that others can write to", fmt.Sprintf("mode %o); set %s", mode, SocketEnv))
	}
	must(os.Remove(dir))
	must(os.WriteFile(dir, nil, 0o600))
	refused("a file", "is not a directory")
	must(os.Remove(dir))
	must(os.Symlink(base, dir))
	refused("a symbolic link", "is not a directory")
	must(os.Remove(dir))
	must(os.Mkdir(dir, 0o700))
	uid++
	dir = filepath.Join(tmp, "locksidecar-"+strconv.Itoa(uid))
	if got, err := defaultSocket(func(string) string { return "" }, system, tmp, uid); err != nil || filepath.Dir(got) != dir {
		t.Errorf("another user: %q %v", got, err)
	}
	must(os.Mkdir(dir, 0o700))
	refused("a directory of somebody else", fmt.Sprintf("uid %d", uid-1))
	must(os.RemoveAll(tmp))
	must(os.WriteFile(tmp, nil, 0o600))
	refused("in a file", "lstat")
	env[SocketEnv] = "/somewhere"
	got, err := defaultSocket(func(k string) string { return env[k] }, system, tmp, uid)
	if err != nil || got != "/somewhere" {
		t.Errorf("%q %v", got, err)
	}
}
