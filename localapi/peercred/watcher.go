package peercred

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher waits for the ends of any number of processes and for the hang-ups of
// any number of sockets in one goroutine and without a thread of its own: all are
// in one epoll, and that epoll is in Go's.
type Watcher struct {
	epoll *os.File

	mu      sync.Mutex
	watched map[int32]watched
	nextID  int32
	closed  bool
}

// watched is one file of the epoll: a pidfd, which belongs to the Watcher, or a
// socket, which does not.
type watched struct {
	fd      int
	process bool
	then    func()
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
		epoll:   os.NewFile(uintptr(fd), "pidfds"),
		watched: make(map[int32]watched),
	}, nil
}

// Run tells ends and hang-ups until ctx ends. Afterwards Gone of the peers
// that are left is never closed, and Watch and HangUp fail.
func (w *Watcher) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.Close)
	defer stop()
	defer w.Close()
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch peers: %w", err)
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
			return fmt.Errorf("watch peers: %w", errors.Join(err, waitErr))
		}
		for _, e := range events[:n] {
			w.happened(e.Fd)
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

// HangUp calls then, which must not block, when the peer of c has closed its
// socket or its sending side, whether or not all that it has sent was read. It
// does so at most once, and not after stop was called.
func (w *Watcher) HangUp(c *net.UnixConn, then func()) (stop func(), _ error) {
	var id int32
	err := control(c, func(fd int) error { return w.add(&id, watched{fd: fd, then: then}) })
	if err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	return func() { w.remove(id) }, nil
}

// add puts a file under watch and sets its id, by which it is removed. The event
// carries that number of ours instead of the file descriptor, whose number may be
// another's by the time the event is looked at.
func (w *Watcher) add(id *int32, x watched) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	for taken := true; taken || w.nextID == 0; {
		w.nextID++
		_, taken = w.watched[w.nextID]
	}
	ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: w.nextID}
	if x.process {
		ev.Events = unix.EPOLLIN
	}
	if err := w.control(unix.EPOLL_CTL_ADD, x.fd, &ev); err != nil {
		return fmt.Errorf("add to epoll: %w", err)
	}
	*id = w.nextID
	w.watched[w.nextID] = x
	return nil
}

// remove takes out what add has put in, unless its event did that before.
func (w *Watcher) remove(id int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(id)
}

// happened is told by the kernel of the event of that id.
func (w *Watcher) happened(id int32) {
	w.mu.Lock()
	x, ok := w.take(id)
	w.mu.Unlock()
	if ok { // else it was removed in the meantime
		x.then()
	}
}

// take forgets an id and closes its pidfd. A socket leaves the epoll by itself
// when it is closed, and tells nothing more once it has told. The caller has
// locked mu.
func (w *Watcher) take(id int32) (watched, bool) {
	x, ok := w.watched[id]
	if !ok {
		return x, false
	}
	delete(w.watched, id)
	if x.process {
		if !w.closed {
			_ = w.control(unix.EPOLL_CTL_DEL, x.fd, nil)
		}
		_ = unix.Close(x.fd)
	}
	return x, true
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
