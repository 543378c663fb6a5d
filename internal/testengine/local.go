package testengine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// local runs servers as children of this process.
type local struct {
	dir  string
	lock *os.File // held as long as the folder is in use, see sweep

	mu    sync.Mutex
	procs []*child
}

const dirPattern = "locksidecar-test-*"

// OnDisk has the servers that are started from now on keep their data on the disk, and answer when it is there: as they do where
// nobody says otherwise, and slower than tests need it. It is for programs that measure.
func OnDisk() { onDisk = true }

var onDisk bool

// newLocal has the data in memory where there is room, unless TMPDIR says otherwise. Servers make, fill and remove hundreds of
// files each, and some write to the disk before they answer. In memory that takes less time, and up to a third less processor time
// of a package's tests. Nothing is different for a server: tests kill servers, not the machine.
func newLocal([]int) (machine, error) {
	if os.Getenv("TMPDIR") == "" && !onDisk && hasRoom(memoryDir, room) {
		return newLocalIn(memoryDir)
	}
	return newLocalIn(os.TempDir())
}

// memoryDir is a file system in memory, where it is mounted, and room what must be free there, and of the memory.
const (
	memoryDir = "/dev/shm"
	room      = 4 << 30
)

func hasRoom(dir string, bytes uint64) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < bytes {
		return false
	}
	if fs.Flags&unix.ST_NOEXEC != 0 { // some servers load a library of ours
		return false
	}
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(info), "MemAvailable:")
	var kib uint64
	_, err = fmt.Sscan(rest, &kib)
	return err == nil && kib<<10 >= bytes
}

func newLocalIn(base string) (machine, error) {
	sweep()
	dir, err := os.MkdirTemp(base, dirPattern)
	if err != nil {
		return nil, fmt.Errorf("make a folder for a server: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the folder of a server: %w", err), os.RemoveAll(dir))
	}
	return &local{dir: dir, lock: f}, nil
}

// sweep removes the folders of test processes that had no time to do it: those
// that nobody has locked and that are not just being made.
func sweep() {
	var dirs []string
	for _, base := range []string{os.TempDir(), memoryDir} {
		some, _ := filepath.Glob(filepath.Join(base, dirPattern)) // the pattern is a good one
		dirs = append(dirs, some...)
	}
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err != nil || time.Since(st.ModTime()) < time.Minute {
			continue
		}
		f, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // what cannot be removed stays, as it was
		}
		_ = f.Close()
	}
}

func (l *local) start(ctx context.Context, dir string, argv ...string) (process, error) {
	path := filepath.Join(l.dir, dir)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of %s: %w", argv[0], err)
	}
	log, err := os.OpenFile(filepath.Join(path, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", argv[0], err)
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = path, log, log
	// However this process ends, the kernel ends the server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c := &child{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(c.gone)
		// The death signal comes when the thread ends that started the child, so
		// this thread must stay until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed in the end: the status says nothing
		}
	}()
	if err := <-started; err != nil {
		<-c.gone
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	l.mu.Lock()
	l.procs = append(l.procs, c)
	l.mu.Unlock()
	return c, nil
}

func (l *local) sh(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = l.dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %q: %w: %s", script, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// cacheName is the folder among the user's caches. scripts/test-deps knows it.
const cacheName = "locksidecar-test"

// cache implements machine.
func (l *local) cache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(l.dir, "cache") // without a home nothing is kept
	}
	return filepath.Join(dir, cacheName)
}

func (l *local) bring(_ context.Context, file string) (string, error) { return file, nil }

func (l *local) bind() string   { return loopback }
func (l *local) String() string { return "on this machine" }

func (l *local) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, c := range l.procs {
		errs = append(errs, c.kill(context.Background()))
	}
	l.procs = nil
	return errors.Join(append(errs, os.RemoveAll(l.dir), l.lock.Close())...)
}

// child is a process of local.
type child struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended and was waited for
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) signal(_ context.Context, s syscall.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", c.cmd.Path, err)
	}
	return nil
}

func (c *child) kill(ctx context.Context) error {
	if err := c.signal(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", c.cmd.Path, ctx.Err())
	}
}

func (c *child) alive(context.Context) (bool, error) {
	select {
	case <-c.gone:
		return false, nil
	default:
		return true, nil
	}
}
