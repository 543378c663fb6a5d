package peercred

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrEnded: the process at the other end has ended, so nothing more can be found out about it.
var ErrEnded = errors.New("the process has ended")

// Cgroups tells in which cgroup the process at the other end of a socket is. cgroup v2 only.
type Cgroups struct {
	root string   // where all cgroups of the machine are mounted
	base []string // the path of the root of this process's cgroup namespace; empty: there is none
	read func(file string) ([]byte, error)

	mu    sync.Mutex
	known map[uint64]string // paths by the kernel's id of the cgroup: no other one gets that id, and none gets another path
}

// maxKnown bounds what is remembered: more than a machine has at a time.
const maxKnown = 4096

// FindCgroups finds the machine's cgroups. It fails where the kernel cannot tell which process
// is at the other end of a socket (before Linux 6.5), and where no mount shows all cgroups.
func FindCgroups() (*Cgroups, error) {
	if err := needPeerPidfd(); err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	return cgroupsAt(cgroupMounts(string(mounts)))
}

// needPeerPidfd asks the kernel for a pidfd of ourselves.
func needPeerPidfd() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make sockets: %w", err)
	}
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	pidfd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		return errors.New("this kernel does not tell for sure which process is at a socket: that needs Linux 6.5 (SO_PEERPIDFD)")
	case err != nil:
		return fmt.Errorf("SO_PEERPIDFD: %w", err)
	}
	return unix.Close(pidfd)
}

// cgroupMount is a line of mountinfo.
type cgroupMount struct{ root, at string }

// cgroupMounts are the mounts of cgroup v2.
func cgroupMounts(mountinfo string) (found []cgroupMount) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(kind) > 0 && kind[0] == "cgroup2" {
			found = append(found, cgroupMount{root: fields[3], at: unescape(fields[4])})
		}
	}
	return found
}

// unescape undoes what the kernel does to blanks in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// topInode is that of the cgroup which all others are in.
const topInode = 1

// cgroupsAt picks the mount that shows all cgroups, and finds in it the one that this process
// takes for the root: paths in /proc begin there.
func cgroupsAt(mounts []cgroupMount) (*Cgroups, error) {
	g := &Cgroups{read: os.ReadFile}
	var ours uint64
	for _, m := range mounts {
		inode, err := cgroupInode(m.at)
		if err != nil {
			continue // something else is mounted over it
		}
		if inode == topInode && g.root == "" {
			g.root = m.at
		}
		if m.root == "/" {
			ours = inode
		}
	}
	switch {
	case g.root == "":
		return nil, errors.New("find cgroups: no mount of cgroup v2 shows those of the whole machine")
	case ours == 0:
		return nil, errors.New("find cgroups: no mount of cgroup v2 shows where paths of this process begin")
	case ours == topInode:
		return g, nil
	}
	err := filepath.WalkDir(g.root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
			return fs.SkipDir
		}
		if err != nil || !d.IsDir() {
			return err
		}
		if inode, err := inodeOf(path); err != nil || inode != ours {
			return nil //nolint:nilerr // the same
		}
		g.base = strings.Split(strings.TrimPrefix(path, g.root+"/"), "/")
		return fs.SkipAll
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("find cgroups: %w", err)
	case g.base == nil:
		return nil, fmt.Errorf("find cgroups: that of this process is not below %s", g.root)
	}
	return g, nil
}

// cgroupInode is that of a folder which must be a cgroup: the kernel's id of it.
func cgroupInode(path string) (uint64, error) {
	var of unix.Statfs_t
	if err := unix.Statfs(path, &of); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	if of.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("%s is no cgroup", path)
	}
	return inodeOf(path)
}

func inodeOf(path string) (uint64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s has no inode", path)
	}
	return st.Ino, nil
}

// Of gives the path of the cgroup in which the process is that made c, from the root of all
// cgroups. ErrEnded: that process has ended. It is never the path of another process, also
// not of one that has the same process id by now.
func (g *Cgroups) Of(c *net.UnixConn) (string, error) {
	pidfd := -1
	err := control(c, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // reaped already
		err = ErrEnded
	case err != nil:
		err = fmt.Errorf("SO_PEERPIDFD: %w", err)
	}
	path := ""
	if err == nil {
		path, err = g.of(pidfd)
		_ = unix.Close(pidfd)
	}
	if err != nil {
		return "", fmt.Errorf("find the cgroup of a peer: %w", err)
	}
	return path, nil
}

// Own gives the path of the cgroup in which this process is, from the root of all cgroups.
func (g *Cgroups) Own() (string, error) {
	text, err := g.read("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find the cgroup of this process: %w", err)
	}
	return g.absolute(text)
}

// of tells it by the id of the cgroup, which the pidfd itself tells, where that is known. To read it costs 20 times as
// much.
func (g *Cgroups) of(pidfd int) (string, error) {
	if id, err := cgroupID(pidfd); err == nil {
		g.mu.Lock()
		path := g.known[id]
		g.mu.Unlock()
		if path != "" {
			return path, alive(pidfd)
		}
	}
	return g.look(pidfd)
}

// remember keeps the path of a cgroup.
func (g *Cgroups) remember(id uint64, path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil || len(g.known) >= maxKnown {
		g.known = make(map[uint64]string)
	}
	g.known[id] = path
}

// look looks at the process before and after what it reads by the process's number. As long as a
// process is alive, nobody else has its number.
func (g *Cgroups) look(pidfd int) (string, error) {
	pid, err := g.pid(pidfd)
	if err != nil {
		return "", err
	}
	text, readErr := g.read("/proc/" + strconv.Itoa(pid) + "/cgroup")
	id, idErr := cgroupID(pidfd)
	if err := alive(pidfd); err != nil {
		return "", err
	}
	if err := errors.Join(readErr, idErr); err != nil {
		return "", err
	}
	path, err := g.absolute(text)
	if err != nil || id == 0 {
		return path, err
	}
	inode, err := cgroupInode(g.root + path)
	switch {
	case err != nil:
		return "", err
	case inode != id:
		return "", fmt.Errorf("it was moved out of %s meanwhile", path)
	}
	g.remember(id, path)
	return path, nil
}

// pid is the number that a pidfd has for us.
func (g *Cgroups) pid(pidfd int) (int, error) {
	text, err := g.read("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(line, []byte("Pid:"))
		if !ok {
			continue
		}
		switch pid, err := strconv.Atoi(string(bytes.TrimSpace(value))); {
		case err != nil:
			return 0, fmt.Errorf("read fdinfo: %w", err)
		case pid < 0:
			return 0, ErrEnded
		case pid == 0:
			return 0, errors.New("the process is in a PID namespace out of sight")
		default:
			return pid, nil
		}
	}
	return 0, errors.New("read fdinfo: there is no process id")
}

// alive is nil, or ErrEnded.
func alive(pidfd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0) //nolint:gosec // a file descriptor
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case n > 0:
			return ErrEnded
		default:
			return nil
		}
	}
}

// cgroupID is the kernel's id of the process's cgroup, which it tells since Linux 6.13; 0: it
// does not. Who has ended is seen by alive.
func cgroupID(pidfd int) (uint64, error) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_CGROUPID}
	switch err := unix.IoctlPidfdInfo(pidfd, &info); {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ESRCH):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("PIDFD_GET_INFO: %w", err)
	case info.Mask&unix.PIDFD_INFO_CGROUPID == 0:
		return 0, nil
	}
	return info.Cgroupid, nil
}

// absolute gives the path that a file /proc/PID/cgroup has for cgroup v2, from the root of all
// cgroups. Outside of our own namespace such a path begins with /.. as often as it takes.
func (g *Cgroups) absolute(file []byte) (string, error) {
	for line := range bytes.Lines(file) {
		rest, ok := bytes.CutPrefix(line, []byte("0::/"))
		if !ok {
			continue
		}
		path := strings.TrimSuffix(string(rest), "\n")
		var parts []string
		if path != "" {
			parts = strings.Split(path, "/")
		}
		up := 0
		for up < len(parts) && parts[up] == ".." {
			up++
		}
		below := parts[up:]
		if up > len(g.base) || slices.ContainsFunc(below, func(s string) bool { return s == "" || s == "." || s == ".." }) {
			return "", fmt.Errorf("/%s is no path of a cgroup", path)
		}
		return "/" + strings.Join(slices.Concat(g.base[:len(g.base)-up], below), "/"), nil
	}
	return "", errors.New("it is in no cgroup of version 2")
}
