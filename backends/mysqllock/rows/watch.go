package rows

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher tells when the other side ends a connection, of any number of them,
// while nobody reads from it. It needs one goroutine and no thread.
type watcher struct {
	epoll *os.File
	raw   syscall.RawConn
	done  chan struct{}

	mu   sync.Mutex
	last int32
	ends map[int32]func()
}

func newWatcher() (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch connections: %w", err)
	}
	// Not blocking, so that the Go runtime waits for it as for a socket.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("watch connections: %w", err), unix.Close(fd))
	}
	w := &watcher{epoll: os.NewFile(uintptr(fd), "epoll"), done: make(chan struct{}), ends: make(map[int32]func())}
	if w.raw, err = w.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch connections: %w", err), w.epoll.Close())
	}
	go w.run()
	return w, nil
}

// add calls end, once and soon, when the other side has ended the connection.
// end must not block. The kernel forgets the connection when it is closed here.
func (w *watcher) add(c syscall.Conn, end func()) (key int32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("watch connection: %w", err)
	}
	w.mu.Lock()
	w.last++
	key = w.last
	w.ends[key] = end
	w.mu.Unlock()
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: key} // HUP and ERR need not be asked for
	var failed error
	err = w.raw.Control(func(epoll uintptr) {
		failed = raw.Control(func(fd uintptr) {
			failed = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, int(fd), &event)
		})
	})
	if err = errors.Join(err, failed); err != nil {
		w.remove(key)
		return 0, fmt.Errorf("watch connection: %w", err)
	}
	return key, nil
}

// remove forgets what was added.
func (w *watcher) remove(key int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, key)
}

func (w *watcher) run() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0) // EINTR: there will be another time
			return n > 0
		})
		if err != nil { // closed
			return
		}
		for _, ev := range events[:n] {
			w.mu.Lock()
			end := w.ends[ev.Fd]
			delete(w.ends, ev.Fd)
			w.mu.Unlock()
			if end != nil {
				end()
			}
		}
	}
}

// close ends the watcher. No end is called after it.
func (w *watcher) close() {
	_ = w.epoll.Close() // nothing was written to it
	<-w.done
}
