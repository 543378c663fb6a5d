package localapi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/localapi/podid"
	"github.com/locksidecar/locksidecar/session"
)

// sideDoors are the sockets of Options.SideDoors. The kernel has one line of waiting connections for each socket, and
// serves it in order. So with one socket for all, who connects faster than it can be found out who that is keeps
// everybody else out.
type sideDoors struct {
	s     *Server
	main  *door
	enter func(*socketFile) // takes connections, until the socket is closed

	open    map[string]*socketFile // by the name of the folder
	entries sync.WaitGroup
	failed  map[string]bool // of what it was logged: the name of a pod's folder, or one of those below

	news  chan struct{} // something has come into the folder
	watch *folderWatch  // nil: the kernel does not tell, as where the folder is not there yet
}

// What goes wrong that is no pod's.
const (
	failedFolder = "/"
	failedWatch  = "/watch"
)

const (
	// sideLook is how often it is looked whether all side doors are open, beside when the kernel tells of a new folder.
	sideLook = time.Second
	// connectsPerSecond are taken at a side door at most, after connectsAtOnce. Each costs about 0.1 ms of a
	// processor, mostly to find out who it is. Those beyond wait.
	connectsPerSecond = 1000
	connectsAtOnce    = 500
)

// CheckSideDoors tells whether the sockets that a server makes in the folder Options.SideDoors would have paths that are
// possible. socket is Options.Socket.
func CheckSideDoors(folder, socket string) error {
	const pod = "00000000-0000-0000-0000-000000000000"
	name := filepath.Base(socket)
	if other := unfinishedSocket(); len(name) < len(other) {
		name = other
	}
	return checkPath(filepath.Join(folder, pod, name))
}

// openSideDoors opens those that are there, and the others when they come, until the server stops.
func (s *Server) openSideDoors(main *door, enter func(*socketFile)) *sideDoors {
	d := &sideDoors{
		s: s, main: main, enter: enter,
		open: make(map[string]*socketFile), failed: make(map[string]bool), news: make(chan struct{}, 1),
	}
	if s.o.SideDoors == "" {
		return d
	}
	d.sync(s.stopping)
	d.entries.Go(func() { d.keep(s.stopping) })
	return d
}

// keep keeps them open until ctx ends. Then it closes them.
func (d *sideDoors) keep(ctx context.Context) {
	look := time.NewTicker(sideLook)
	defer look.Stop()
	for {
		select {
		case <-d.news:
		case <-look.C:
		case <-ctx.Done():
			for name := range d.open {
				d.shut(name)
			}
			d.watch.stop()
			return
		}
		d.sync(ctx)
	}
}

// close returns, after the server begins to stop, when no connection is being taken.
func (d *sideDoors) close() { d.entries.Wait() }

// sync opens the doors of folders that are there, and closes those of others. Where another sidecar has the
// main door, it has these as well, or is about to: then none is taken from it.
func (d *sideDoors) sync(ctx context.Context) {
	d.attend() // before the look: what comes after it is told
	entries, err := os.ReadDir(d.s.o.SideDoors)
	d.log(failedFolder, "cannot look which pods there are; trying again and again", d.s.o.SideDoors, err)
	if err != nil {
		return // those that are open stay so
	}
	there := make(map[string]bool)
	for _, e := range entries {
		if name := e.Name(); e.IsDir() && podid.ValidPod(name) {
			there[name] = true
		}
	}
	for name := range d.open {
		if !there[name] {
			d.shut(name)
		}
	}
	for name := range d.failed {
		if podid.ValidPod(name) && !there[name] {
			delete(d.failed, name)
		}
	}
	for name := range there {
		path := filepath.Join(d.s.o.SideDoors, name, filepath.Base(d.s.o.Socket))
		if isAt(d.open[name], path) || !d.main.found() || ctx.Err() != nil {
			continue
		}
		// It makes no folder: of a pod that has ended meanwhile nobody would remove it again.
		socket, err := replaceIn(ctx, path, d.s.o.Mode)
		if errors.Is(err, fs.ErrNotExist) {
			continue // that pod
		}
		d.log(name, "cannot serve the socket of a pod; trying again and again", path, err)
		if err != nil {
			continue
		}
		d.shut(name)
		d.open[name] = socket
		d.entries.Go(func() { d.enter(socket) })
	}
}

// log says once that something is wrong, until it is right again. It does not wait for the log: other pods do not either.
func (d *sideDoors) log(what, message, path string, err error) {
	switch {
	case err == nil:
		delete(d.failed, what)
	case !d.failed[what]:
		d.failed[what] = d.s.aside(session.Principal{}, func() { d.s.o.Logger.Error(message, keySocket, path, keyError, err) })
	}
}

// shut takes no more connections at a door. Those that are there go on.
func (d *sideDoors) shut(name string) {
	if socket := d.open[name]; socket != nil {
		_ = socket.Close()
		delete(d.open, name)
	}
}

// isAt tells whether a socket, which may be nil, is what is found at a path.
func isAt(s *socketFile, path string) bool {
	if s == nil {
		return false
	}
	id, err := identify(path)
	return err == nil && id == s.id
}

// found tells whether clients that connect now find this door.
func (d *door) found() bool {
	socket := d.now()
	return isAt(socket, socket.path)
}

// attend has the kernel tell what comes into the folder, where it does not yet: the folder may have come later than this
// server, or again, and the kernel's limit may have been reached.
func (d *sideDoors) attend() {
	id, err := statID(d.s.o.SideDoors)
	if err != nil || d.watch.of(id) {
		return // without a folder there is nothing to tell
	}
	d.watch.stop()
	d.watch, err = watchFolder(d.s.o.SideDoors, id, d.news)
	d.log(failedWatch, "the kernel does not tell of new pods: their sockets come up to a second later", d.s.o.SideDoors, err)
}

// folderWatch is the kernel's word for what comes into a folder.
type folderWatch struct {
	id      fileID
	file    *os.File
	over    atomic.Bool // the folder was removed; another one may have its id now
	reading sync.WaitGroup
}

// of tells whether it is the word for the folder with that id. w may be nil.
func (w *folderWatch) of(id fileID) bool { return w != nil && w.id == id && !w.over.Load() }

// watchFolder tells when something comes into a folder.
func watchFolder(path string, id fileID, told chan<- struct{}) (*folderWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify (a user has fs.inotify.max_user_instances of them): %w", err)
	}
	w := &folderWatch{id: id, file: os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		_ = w.file.Close()
		return nil, fmt.Errorf("inotify (a user has fs.inotify.max_user_watches of them): %w", err)
	}
	w.reading.Go(func() {
		buf := make([]byte, 4<<10)
		for {
			n, err := w.file.Read(buf)
			if err != nil {
				return
			}
			if removed(buf[:n]) {
				w.over.Store(true)
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	})
	return w, nil
}

// removed tells whether events of inotify say that there is nothing to watch any more.
func removed(events []byte) bool {
	const atMask, atLength = 4, 12 // of struct inotify_event
	for len(events) >= unix.SizeofInotifyEvent {
		if binary.NativeEndian.Uint32(events[atMask:])&unix.IN_IGNORED != 0 {
			return true
		}
		events = events[unix.SizeofInotifyEvent+min(int(binary.NativeEndian.Uint32(events[atLength:])), len(events)-unix.SizeofInotifyEvent):]
	}
	return false
}

func (w *folderWatch) stop() {
	if w != nil {
		_ = w.file.Close()
		w.reading.Wait()
	}
}

// pace spreads what is taken over time.
type pace struct {
	left float64 // how many may be taken at once
	at   time.Time
}

func newPace() *pace { return &pace{left: connectsAtOnce, at: time.Now()} }

// next counts one that is to be taken, and tells how long to wait before. After a pause several are taken, so that a
// busy door does not wake the process for each.
func (p *pace) next(now time.Time) time.Duration {
	p.left = min(connectsAtOnce, p.left+now.Sub(p.at).Seconds()*connectsPerSecond)
	p.at = now
	p.left--
	if p.left >= 0 {
		return 0
	}
	const several = 10
	return time.Duration((several - p.left) / connectsPerSecond * float64(time.Second))
}
