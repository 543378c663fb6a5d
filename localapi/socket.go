package localapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse: another sidecar answers at the path.
var ErrSocketInUse = errors.New("another sidecar serves this socket")

// maxSocketPath is what fits in sun_path beside the terminating zero.
const maxSocketPath = 107

// socketFile is a listening socket and its place in the file system.
//
// Beside it lies a file PATH.lock, locked as long as the socket is ours, unless it has
// replaced another one. Two
// sidecars that start at the same time on the path of a dead one would both see
// it dead, and the slower would remove the socket of the faster; with the lock
// one of them fails.
type socketFile struct {
	*net.UnixListener
	path string
	id   fileID
	lock *os.File // nil: it has replaced another one, and may be replaced
}

// fileID tells whether a path still leads to the same file.
type fileID struct{ dev, ino uint64 }

// listen makes the socket at path. ErrSocketInUse: somebody else serves it.
func listen(ctx context.Context, path string, mode fs.FileMode) (_ *socketFile, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen on %s: %w", path, err)
		}
	}()
	if err := makePlace(path); err != nil {
		return nil, err
	}
	lock, err := lockPath(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlockPath(lock)
		}
	}()
	if err := checkStale(ctx, path); err != nil {
		return nil, err
	}
	l, id, err := bind(ctx, path, mode)
	if err != nil {
		return nil, err
	}
	return &socketFile{UnixListener: l, path: path, id: id, lock: lock}, nil
}

// replace makes the socket at path in place of one that somebody serves, who keeps the connections
// that it has.
func replace(ctx context.Context, path string, mode fs.FileMode) (*socketFile, error) {
	if err := makePlace(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return replaceIn(ctx, path, mode)
}

// replaceIn is replace in a folder that must be there. fs.ErrNotExist: it is not.
func replaceIn(ctx context.Context, path string, mode fs.FileMode) (*socketFile, error) {
	err := checkPath(path)
	if err == nil {
		var s socketFile
		if s.UnixListener, s.id, err = bind(ctx, path, mode); err == nil {
			s.path = path
			return &s, nil
		}
	}
	return nil, fmt.Errorf("listen on %s: %w", path, err)
}

// Served tells whether somebody answers at the path of a socket.
func Served(ctx context.Context, path string) bool {
	return errors.Is(checkStale(ctx, path), ErrSocketInUse)
}

// makePlace checks the path of a socket, and makes its folder.
func makePlace(path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(path), 0o700)
}

func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("no path is given")
	case path[0] == '@':
		return errors.New("abstract sockets have no file mode to guard them; give a path")
	case len(path) > maxSocketPath:
		return fmt.Errorf("the path is %d bytes long, at most %d are possible", len(path), maxSocketPath)
	}
	return nil
}

// Close stops listening and removes the socket, unless its place was taken by
// another file meanwhile. Without the lock it stays: another sidecar may replace it between a look
// and the removal.
func (s *socketFile) Close() error {
	err := s.UnixListener.Close()
	if s.lock == nil {
		return err
	}
	if id, statErr := identify(s.path); statErr == nil && id == s.id {
		err = errors.Join(err, os.Remove(s.path))
	}
	unlockPath(s.lock)
	return err
}

// A socket is looked at soon after it was made, and then more and more seldom: each look
// wakes a sidecar that has nothing else to do. One that may be replaced is always looked at as often.
const (
	firstLook = time.Second
	maxLook   = 16 * time.Second
)

// watch returns when ctx ends, or calls f when nobody can find the socket any more. ctx
// must end before Close.
func (s *socketFile) watch(ctx context.Context, f func()) {
	pause := firstLook
	look := time.NewTimer(pause)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			id, err := identify(s.path)
			if ctx.Err() != nil { // we may have removed it ourselves
				return
			}
			if errors.Is(err, fs.ErrNotExist) || (err == nil && id != s.id) {
				f()
				return
			}
			if s.lock != nil {
				pause = min(2*pause, maxLook)
			}
			look.Reset(pause)
		case <-ctx.Done():
			return
		}
	}
}

// bind makes the socket under another name, gives it its mode, and only then
// moves it to its place: nobody can connect before the mode guards it, and the
// path of a dead sidecar's socket is never empty in between.
func bind(ctx context.Context, path string, mode fs.FileMode) (_ *net.UnixListener, id fileID, err error) {
	tmp := filepath.Join(filepath.Dir(path), unfinishedSocket())
	if len(tmp) > maxSocketPath {
		return nil, fileID{}, fmt.Errorf("the path of its directory is too long by %d bytes", len(tmp)-maxSocketPath)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", tmp)
	if err != nil {
		return nil, fileID{}, err
	}
	ul := l.(*net.UnixListener) //nolint:forcetypeassert // what "unix" gives
	defer func() {
		if err != nil {
			_ = ul.Close() // removes tmp
		}
	}()
	if err := os.Chmod(tmp, mode); err != nil {
		return nil, fileID{}, err
	}
	if id, err = identify(tmp); err != nil {
		return nil, fileID{}, err
	}
	return ul, id, os.Rename(tmp, path)
}

// unfinishedSocket is a new name for a socket that is not at its place yet.
func unfinishedSocket() string { return "." + rand.Text()[:8] }

// checkStale is nil when path is free, or has the socket of a dead process.
func checkStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("there is a file that is not a socket (%s); it is left alone", info.Mode())
	}
	dialer := net.Dialer{Timeout: time.Second}
	c, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return ErrSocketInUse
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	default: // EAGAIN: alive, with a full backlog. EACCES: not ours.
		return fmt.Errorf("%w, or cannot be reached: %w", ErrSocketInUse, err)
	}
}

// lockPath takes the lock file, which is removed again by unlockPath. So what
// was locked may be a file that lies there no more; then it is tried again.
func lockPath(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator's path
		if err != nil {
			return nil, err
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			_ = f.Close()
			return nil, fmt.Errorf("%w (%s is locked)", ErrSocketInUse, path)
		case err != nil:
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if isThere(f) {
			return f, nil
		}
		_ = f.Close()
	}
}

// unlockPath removes the file while it is still locked, so that nobody else's
// can be meant; unless somebody has removed it before, and another lies there.
func unlockPath(f *os.File) {
	if isThere(f) {
		_ = os.Remove(f.Name())
	}
	_ = f.Close()
}

// isThere reports whether the name of an open file still leads to it.
func isThere(f *os.File) bool {
	mine, _ := f.Stat()
	there, _ := os.Stat(f.Name())
	return os.SameFile(mine, there) // false where one could not be looked at
}

func identify(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fileID{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fileID{dev: st.Dev, ino: st.Ino}, nil
}

// statID is identify of what a link leads to.
func statID(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileID{dev: st.Dev, ino: st.Ino}, nil
}
