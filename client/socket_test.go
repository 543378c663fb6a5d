package client

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/socketrule"
)

func TestDefaultSocket(t *testing.T) {
	socketrule.Run(t, "../examples/contract/vectors/socket.json", func(t *testing.T, c socketrule.Case) (path string, err error) {
		t.Setenv("TMPDIR", c.Env["TMPDIR"])
		as(t, c.UID, func() {
			path, err = defaultSocket(func(name string) string { return c.Env[name] }, c.System, os.TempDir(), c.UID)
		})
		return path, err
	})
}

// as calls f in a thread that belongs to that user. The thread ends with it.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if uid != os.Getuid() {
			id := uintptr(uid)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
				done <- errno
				return
			}
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatalf("become the user %d: %v", uid, err)
	}
}
