package peercred

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watcher waits for the ends of any number of processes and for the hang-ups of
// any number of sockets in one goroutine and without a thread of its own: all are
// in one epoll, and that epoll is in Go's.
type Watcher struct {
	epoll *os.File
	raw   syscall.RawConn // of epoll

	mu      sync.Mutex
	watched map[int32]*watched
	ids     map[process]int32 // of the processes that can be told apart
	nextID  int32
	closed  bool
}

// watched is one file of the epoll: a pidfd, which belongs to the Watcher, or a
// socket, which does not.
type watched struct {
	fd      int
	then    func()           // of a socket
	peers   map[*Peer]func() // of a pidfd: all that the process has connected as, and what follows
	process process
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
	epoll := os.NewFile(uintptr(fd), "pidfds")
	raw, err := epoll.SyscallConn()
	if err != nil {
		_ = epoll.Close()
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &Watcher{
		epoll:   epoll,
		raw:     raw,
		watched: make(map[int32]*watched),
		ids:     make(map[process]int32),
	}, nil
}

// Run tells ends and hang-ups until ctx ends. Afterwards Gone of the peers
// that are left is never closed, and Watch and HangUp fail.
func (w *Watcher) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.Close)
	defer stop()
	defer w.Close()
	events := make([]unix.EpollEvent, 128)
	for {
		var n int
		var waitErr error
		err := w.raw.Read(func(fd uintptr) bool {
			n, waitErr = unix.EpollWait(int(fd), events, 0)
			return n != 0 // some, or -1 and an error
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
	return w.socket(c, unix.EPOLLRDHUP, then)
}

// Closed is HangUp for who may still get answers when it has closed its sending side.
func (w *Watcher) Closed(c *net.UnixConn, then func()) (stop func(), _ error) {
	return w.socket(c, 0, then) // the kernel always tells of EPOLLHUP
}

func (w *Watcher) socket(c *net.UnixConn, events uint32, then func()) (stop func(), _ error) {
	var id int32
	err := control(c, func(fd int) (err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		id, err = w.add(&watched{fd: fd, then: then}, events|unix.EPOLLONESHOT)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.take(id)
	}, nil
}

// addPeer puts the process of p under watch, by a pidfd that from now on belongs to
// the Watcher. A process that is watched already needs no second one: else one that
// connects again and again could take all files.
func (w *Watcher) addPeer(p *Peer, pidfd int, then func()) error {
	of := processOf(pidfd)
	w.mu.Lock()
	defer w.mu.Unlock()
	if id, ok := w.ids[of]; ok && !w.closed {
		_ = unix.Close(pidfd)
		p.id = id
		w.watched[id].peers[p] = then
		return nil
	}
	id, err := w.add(&watched{fd: pidfd, peers: map[*Peer]func(){p: then}, process: of}, unix.EPOLLIN)
	if err != nil {
		_ = unix.Close(pidfd)
		return err
	}
	p.id = id
	if of != (process{}) {
		w.ids[of] = id
	}
	return nil
}

// removePeer takes out what addPeer has put in, unless the end of the process did
// that before.
func (w *Watcher) removePeer(p *Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.watched[p.id]
	if x == nil {
		return
	}
	delete(x.peers, p)
	if len(x.peers) == 0 {
		w.take(p.id)
	}
}

// add puts a file under watch and gives its id. The event carries that number of
// ours instead of the file descriptor, whose number may be another's by the time the
// event is looked at. The caller has locked mu.
func (w *Watcher) add(x *watched, events uint32) (id int32, _ error) {
	if w.closed {
		return 0, os.ErrClosed
	}
	for taken := true; taken; {
		w.nextID++
		_, taken = w.watched[w.nextID]
	}
	if err := w.control(unix.EPOLL_CTL_ADD, x.fd, &unix.EpollEvent{Events: events, Fd: w.nextID}); err != nil {
		return 0, fmt.Errorf("add to epoll: %w", err)
	}
	w.watched[w.nextID] = x
	return w.nextID, nil
}

// happened is told by the kernel of the event of that id.
func (w *Watcher) happened(id int32) {
	w.mu.Lock()
	x := w.take(id)
	w.mu.Unlock()
	switch {
	case x == nil: // it was removed in the meantime
	case x.then != nil:
		x.then()
	default:
		for _, then := range x.peers {
			then()
		}
	}
}

// take forgets an id and closes its pidfd. A socket leaves the epoll by itself
// when it is closed, and tells nothing more once it has told. The caller has
// locked mu.
func (w *Watcher) take(id int32) *watched {
	x := w.watched[id]
	if x == nil {
		return nil
	}
	delete(w.watched, id)
	if x.peers != nil {
		delete(w.ids, x.process)
		_ = w.control(unix.EPOLL_CTL_DEL, x.fd, nil)
		_ = unix.Close(x.fd)
	}
	return x
}

// control changes the epoll; it fails when that is closed.
func (w *Watcher) control(op, fd int, ev *unix.EpollEvent) error {
	var inner error
	err := w.raw.Control(func(epfd uintptr) { inner = unix.EpollCtl(int(epfd), op, fd, ev) })
	return errors.Join(err, inner)
}
