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

// Terminal is the one that this process was started from, if there is one. At any
// time one process group has it: it may read, and gets Ctrl-C.
type Terminal struct {
	file *os.File // nil: there is none
	lent bool     // another group has it from us
}

// OpenTerminal finds our controlling terminal. Where there is none, the Terminal is
// nobody's.
func OpenTerminal() *Terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return &Terminal{}
	}
	return &Terminal{file: f}
}

// Exists reports whether there is one: then a shell may have us as a job.
func (t *Terminal) Exists() bool { return t.file != nil }

// Lent reports whether a group has it from us.
func (t *Terminal) Lent() bool { return t.lent }

// Ours reports whether our group has it.
func (t *Terminal) Ours() bool { return t.file != nil && t.owner() == unix.Getpgrp() }

func (t *Terminal) owner() int {
	pgid, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return pgid
}

// Lend gives it to a group, if it is ours to give.
func (t *Terminal) Lend(group int) {
	if t.Ours() {
		t.lent = t.assign(group) == nil
	}
}

// TakeBack takes it back from a group that got it from us.
func (t *Terminal) TakeBack() {
	if !t.lent {
		return
	}
	t.lent = false
	// Who does not have the terminal is stopped for touching it, unless it does
	// not listen.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = t.assign(unix.Getpgrp()) // hung up: then nobody needs it
}

func (t *Terminal) assign(group int) error {
	return unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

// JobControlled reports whether a shell has us as one of its jobs, so that it
// notices when we are stopped and can continue us: whether an ancestor is in
// our session and in another group. (The kernel asks the same before it lets
// Ctrl-Z stop somebody.)
func JobControlled() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	group := unix.Getpgrp()
	for pid := os.Getppid(); pid > 0; {
		_, parent, itsGroup, ok := readStat(pid)
		if itsSession, err := unix.Getsid(pid); !ok || err != nil || itsSession != session {
			return false
		}
		if itsGroup != group {
			return true
		}
		pid = parent
	}
	return false
}
