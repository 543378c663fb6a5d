package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// SocketEnv is the environment variable that names the sidecar's socket.
const SocketEnv = "LOCKSIDECAR_SOCKET"

const (
	systemDir  = "/run/locksidecar"
	socketName = "locksidecar.sock"
)

// DefaultSocket is where a sidecar and its clients meet when nobody says
// otherwise. Both sides use this one rule:
//
//  1. $LOCKSIDECAR_SOCKET, if it is set;
//  2. /run/locksidecar/locksidecar.sock, if this user can connect to it or can
//     make it;
//  3. $XDG_RUNTIME_DIR/locksidecar/locksidecar.sock, if that is set;
//  4. /tmp/locksidecar-UID/locksidecar.sock.
//
// The error says that the directory of the last is another user's: a lock from
// there would be worth nothing.
func DefaultSocket() (string, error) {
	return defaultSocket(os.Getenv, systemDir, os.TempDir(), os.Getuid())
}

func defaultSocket(env func(string) string, system, tmp string, uid int) (string, error) {
	if path := env(SocketEnv); path != "" {
		return path, nil
	}
	if usable(system) {
		return filepath.Join(system, socketName), nil
	}
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "locksidecar", socketName), nil
	}
	dir := filepath.Join(tmp, "locksidecar-"+strconv.Itoa(uid))
	if err := checkOwner(dir, uid); err != nil {
		return "", err
	}
	return filepath.Join(dir, socketName), nil
}

// usable tells whether there is a socket in dir that can be connected to, or
// whether one can be made.
func usable(dir string) bool {
	switch err := unix.Access(filepath.Join(dir, socketName), unix.W_OK); {
	case err == nil:
		return true
	case !errors.Is(err, unix.ENOENT):
		return false
	}
	err := unix.Access(dir, unix.W_OK|unix.X_OK)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Access(filepath.Dir(dir), unix.W_OK|unix.X_OK)
	}
	return err == nil
}

// checkOwner refuses a directory in a place where anybody can make it, if
// somebody else did. One that is not there yet will be the user's own.
func checkOwner(dir string, uid int) error {
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("find socket: %w", &fs.PathError{Op: "lstat", Path: dir, Err: err})
	case st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != uid || st.Mode&0o022 != 0:
		return fmt.Errorf("find socket: %s is not a directory of this user's alone (uid %d, mode %o); set %s", dir, st.Uid, st.Mode&0o7777, SocketEnv)
	}
	return nil
}
