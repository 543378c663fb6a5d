// Package peercred tells who is at the other end of a Unix socket, and when
// that process ends.
//
// The kernel recorded the peer when the connection was made. So nobody can forge it, and
// it does not change when the socket is passed on: a child that
// inherited the socket still counts as its parent.
package peercred

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the process that made a connection. While one that is watched has an
// owner, which has not called Release, a file descriptor is held for its process.
type Peer struct {
	UID, GID uint32
	PID      int32 // 0 when it is in a PID namespace out of sight

	// Gone is closed when the process has ended, also while a child of it keeps
	// the socket open. Watch sets it. It is nil where the kernel cannot tell:
	// before Linux 6.5 for a process in a PID namespace out of sight, before 5.3
	// for all.
	Gone <-chan struct{}

	watcher *Watcher // nil: not watched
	id      int32    // key in the watcher
	owners  atomic.Int32
}

// gonePeer is the Gone of every process that was dead when it was looked at.
var gonePeer = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Identify tells who is at the other end of c. Its end is not watched.
func Identify(c *net.UnixConn) (*Peer, error) {
	p := &Peer{}
	p.owners.Store(1)
	err := control(c, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return fmt.Errorf("SO_PEERCRED: %w", err)
		}
		p.UID, p.GID, p.PID = cred.Uid, cred.Gid, cred.Pid
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("identify peer: %w", err)
	}
	return p, nil
}

// Watch begins to watch p, which was found at the other end of c: when the
// process ends, Gone is closed and then is called, which must not block. It is
// called at most once. From now on the caller owns p and must Release it.
func (w *Watcher) Watch(p *Peer, c *net.UnixConn, then func()) error {
	pidfd := -1
	err := control(c, func(fd int) (err error) {
		pidfd, err = p.open(fd)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch peer: %w", err)
	}
	if pidfd < 0 {
		return nil
	}
	gone := make(chan struct{})
	p.Gone, p.watcher = gone, w
	err = w.addPeer(p, pidfd, func() {
		close(gone)
		then()
	})
	if err != nil {
		p.watcher = nil
		return fmt.Errorf("watch peer: %w", err)
	}
	return nil
}

// open gets the pidfd of the peer of the socket fd, or -1 where there is none.
func (p *Peer) open(fd int) (pidfd int, err error) {
	return p.opened(unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD))
}

// opened draws the conclusions from what the kernel has said.
func (p *Peer) opened(pidfd int, err error) (int, error) {
	switch {
	case err == nil:
		return pidfd, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // reaped already
		p.Gone = gonePeer
		return -1, nil
	case !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.ENODATA):
		return -1, fmt.Errorf("SO_PEERPIDFD: %w", err)
	}
	pidfd, p.Gone, err = openPID(p.PID)
	return pidfd, err
}

// process tells processes apart, by the inodes of their pidfds: since Linux 6.9 each
// has its own, which no other process gets later. The zero one is of an older kernel.
type process struct{ dev, ino uint64 }

// pidfs is the file system of such pidfds.
const pidfs = 0x50494446

func processOf(pidfd int) process {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(pidfd, &fs) != nil || fs.Type != pidfs || unix.Fstat(pidfd, &st) != nil {
		return process{}
	}
	return process{dev: st.Dev, ino: st.Ino}
}

// control calls f with the file descriptor of c, which is open meanwhile.
func control(c *net.UnixConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}

// openPID is the way before Linux 6.5. Between the connect of the peer and this
// call its number may have gone to another process; nothing can rule that out,
// which is why SO_PEERPIDFD was made.
func openPID(pid int32) (pidfd int, gone <-chan struct{}, err error) {
	if pid == 0 {
		return -1, nil, nil
	}
	return openedPID(unix.PidfdOpen(int(pid), 0))
}

// openedPID draws the conclusions from what the kernel has said.
func openedPID(pidfd int, err error) (int, <-chan struct{}, error) {
	switch {
	case err == nil:
		return pidfd, nil, nil
	case errors.Is(err, unix.ESRCH):
		return -1, gonePeer, nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // old kernel, or seccomp
		return -1, nil, nil
	default:
		return -1, nil, fmt.Errorf("pidfd_open: %w", err)
	}
}

// Watched is a number of what is watched; peers have the same only where that is one file. 0: nothing is.
func (p *Peer) Watched() int32 { return p.id }

// Retain adds an owner, which must call Release. False: the last owner has
// released p, whose end nobody watches any more.
func (p *Peer) Retain() bool {
	for {
		n := p.owners.Load()
		if n == 0 {
			return false
		}
		if p.owners.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives up the watch. After the last owner's Release, Gone is closed no
// more if it was not closed before.
func (p *Peer) Release() {
	if p.owners.Add(-1) == 0 && p.watcher != nil {
		p.watcher.removePeer(p)
	}
}

// Groups gives the supplementary groups of the process that made c, as they
// were when it connected.
func Groups(c *net.UnixConn) ([]uint32, error) {
	var groups []uint32
	err := control(c, func(fd int) (err error) {
		groups, err = peerGroups(uintptr(fd))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read peer groups: %w", err)
	}
	return groups, nil
}

func peerGroups(fd uintptr) ([]uint32, error) {
	buf := make([]uint32, 64)
	for {
		size := uint32(len(buf) * 4) //nolint:gosec // at most NGROUPS_MAX (65536) * 4, doubled
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // x/sys has no wrapper for SO_PEERGROUPS
		switch {
		case errno == 0:
			return buf[:size/4], nil
		case errno == unix.ERANGE && int(size) > len(buf)*4: // the kernel wrote the size it needs
			buf = make([]uint32, size/4)
		case errno == unix.ENODATA || errno == unix.ENOPROTOOPT:
			return nil, nil
		default:
			return nil, fmt.Errorf("SO_PEERGROUPS: %w", errno)
		}
	}
}
