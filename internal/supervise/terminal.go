package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Terminal is the one that this process was started from.
type Terminal struct{ file *os.File }

// OpenTerminal finds our controlling terminal; nil: there is none.
func OpenTerminal() *Terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return &Terminal{file: f}
}

// Has reports whether the process group of pid has the terminal: then that gets Ctrl-C.
// 0 is this process. A nil Terminal is nobody's.
func (t *Terminal) Has(pid int) bool {
	if t == nil {
		return false
	}
	has, err1 := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	group, err2 := unix.Getpgid(pid)
	return err1 == nil && err2 == nil && has == group
}

// Stop stops this process until it is continued, where a shell will do so.
func Stop() {
	if isJob(os.Getpid()) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}

// isJob reports whether a shell has the process as one of its jobs: whether an ancestor
// is in its session and in another group. (The kernel asks the same before it lets
// Ctrl-Z stop somebody.)
func isJob(pid int) bool {
	session, err := unix.Getsid(pid)
	if err != nil {
		return false
	}
	me, ok := readStat(pid)
	for parent := me.parent; ok && parent > 0; {
		var s stat
		s, ok = readStat(parent)
		if its, err := unix.Getsid(parent); !ok || err != nil || its != session {
			return false
		}
		if s.group != me.group {
			return true
		}
		parent = s.parent
	}
	return false
}

// WriteAlways lets this process write to its terminal also while it runs in the
// background, and to what nobody reads any more.
func WriteAlways() { signal.Ignore(syscall.SIGTTOU, syscall.SIGPIPE) }

// Stopped reports whether a process is stopped.
func Stopped(pid int) bool {
	s, ok := readStat(pid)
	return ok && s.state == 'T'
}
