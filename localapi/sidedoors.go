package localapi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/localapi/podid"
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
	failed  map[string]bool // that it was logged
}

const (
	// sideLook is how often it is looked whether all side doors are open, beside when the kernel tells of a new folder.
	sideLook = time.Second
	// connectsPerSecond are taken at a side door at most, after connectsAtOnce. Each costs about 0.1 ms of a
	// processor, mostly to find out who it is. Those beyond wait.
	connectsPerSecond = 1000
	connectsAtOnce    = 500
)

// openSideDoors opens those that are there, and the others when they come, until the server stops.
func (s *Server) openSideDoors(main *door, enter func(*socketFile)) *sideDoors {
	d := &sideDoors{s: s, main: main, enter: enter, open: make(map[string]*socketFile), failed: make(map[string]bool)}
	if s.o.SideDoors == "" {
		return d
	}
	news, stop := watchFolder(s.o.SideDoors)
	d.sync(s.stopping)
	d.entries.Go(func() {
		defer stop()
		d.watch(s.stopping, news)
	})
	return d
}

// watch keeps them open until ctx ends. Then it closes them.
func (d *sideDoors) watch(ctx context.Context, news <-chan struct{}) {
	look := time.NewTicker(sideLook)
	defer look.Stop()
	for {
		select {
		case <-news:
		case <-look.C:
		case <-ctx.Done():
			for name := range d.open {
				d.shut(name)
			}
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
	entries, err := os.ReadDir(d.s.o.SideDoors)
	d.log(d.s.o.SideDoors, err)
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
	for name := range there {
		path := filepath.Join(d.s.o.SideDoors, name, filepath.Base(d.s.o.Socket))
		if isAt(d.open[name], path) || !d.main.found() || ctx.Err() != nil {
			continue
		}
		socket, err := replace(ctx, path, d.s.o.Mode)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the pod has ended meanwhile
		}
		if d.log(path, err); err != nil {
			continue
		}
		d.shut(name)
		d.open[name] = socket
		d.entries.Go(func() { d.enter(socket) })
	}
}

// log says once that something is wrong, until it is right again.
func (d *sideDoors) log(path string, err error) {
	if err != nil && !d.failed[path] {
		d.s.o.Logger.Error("cannot serve the socket of a pod; trying again and again", keySocket, path, keyError, err)
	}
	if err == nil {
		delete(d.failed, path)
	} else {
		d.failed[path] = true
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

// watchFolder tells when something comes into a folder, as far as the kernel can.
func watchFolder(path string) (news <-chan struct{}, stop func()) {
	told := make(chan struct{}, 1)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return told, func() {}
	}
	file := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		_ = file.Close()
		return told, func() {}
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4<<10)
		for {
			if _, err := file.Read(buf); err != nil {
				return
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	})
	return told, func() {
		_ = file.Close()
		reading.Wait()
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
