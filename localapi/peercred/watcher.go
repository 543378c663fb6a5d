package peercred

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher waits for the end of any number of processes in one goroutine and
// without a thread of its own: their pidfds are in one epoll, and that epoll is
// in Go's.
type Watcher struct {
	epoll *os.File

	mu     sync.Mutex
	peers  map[int32]*Peer
	nextID int32
	closed bool
}

// NewWatcher makes a Watcher, whose Run must then be called.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // or os.NewFile keeps it out of Go's poller
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &Watcher{
		epoll: os.NewFile(uintptr(fd), "pidfds"),
		peers: make(map[int32]*Peer),
	}, nil
}

// Run tells the ends of processes until ctx ends. Afterwards Gone of the peers
// that are left is never closed, and Peer fails.
func (w *Watcher) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.Close)
	defer stop()
	defer w.Close()
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch processes: %w", err)
	}
	events := make([]unix.EpollEvent, 128)
	for {
		var n int
		var waitErr error
		err := raw.Read(func(fd uintptr) bool {
			n, waitErr = unix.EpollWait(int(fd), events, 0)
			return n != 0 || (waitErr != nil && !errors.Is(waitErr, unix.EINTR))
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil || waitErr != nil:
			return fmt.Errorf("watch processes: %w", errors.Join(err, waitErr))
		}
		for _, e := range events[:n] {
			w.ended(e.Fd)
		}
	}
}

// Close ends a Watcher whose Run is not called; Run does it by itself.
func (w *Watcher) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		_ = w.epoll.Close()
	}
}

// add puts p under watch. The event carries a number of ours instead of the
// pidfd, whose number may be another's by the time the event is looked at.
func (w *Watcher) add(p *Peer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	for {
		w.nextID++
		if _, taken := w.peers[w.nextID]; !taken {
			break
		}
	}
	p.id = w.nextID
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: p.id}
	if err := w.control(unix.EPOLL_CTL_ADD, p.pidfd, &ev); err != nil {
		return fmt.Errorf("add pidfd: %w", err)
	}
	w.peers[p.id] = p
	return nil
}

// remove takes p out, if its end did not do it before.
func (w *Watcher) remove(p *Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peers[p.id] == p {
		w.forget(p)
	}
}

// ended is told by the kernel that the process of that number has ended.
func (w *Watcher) ended(id int32) {
	w.mu.Lock()
	p := w.peers[id]
	if p != nil {
		w.forget(p)
	}
	w.mu.Unlock()
	if p != nil { // else it was removed in the meantime
		close(p.gone)
		p.then()
	}
}

// forget closes the pidfd. The caller has locked mu.
func (w *Watcher) forget(p *Peer) {
	delete(w.peers, p.id)
	if !w.closed {
		_ = w.control(unix.EPOLL_CTL_DEL, p.pidfd, nil)
	}
	_ = unix.Close(p.pidfd)
}

// control changes the epoll. The caller has locked mu and seen that the epoll
// is open.
func (w *Watcher) control(op, fd int, ev *unix.EpollEvent) error {
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(epfd uintptr) { inner = unix.EpollCtl(int(epfd), op, fd, ev) })
	return errors.Join(err, inner)
}
