package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// terminal is the one that this process was started from, if there is one. At
// any time one process group has it: it may read, and gets Ctrl-C.
type terminal struct {
	file *os.File // nil: there is none
	lent bool     // CMD's group has it from us
}

// openTerminal finds our controlling terminal.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return &terminal{}
	}
	return &terminal{file: f}
}

// ours reports whether our group has it.
func (t *terminal) ours() bool { return t.file != nil && t.owner() == unix.Getpgrp() }

func (t *terminal) owner() int {
	pgid, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return pgid
}

// lend gives it to a group, if it is ours to give.
func (t *terminal) lend(group int) {
	if t.ours() {
		t.lent = t.assign(group) == nil
	}
}

// takeBack takes it back from a group that got it from us.
func (t *terminal) takeBack() {
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

func (t *terminal) assign(group int) error {
	return unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

// jobControlled reports whether a shell has us as one of its jobs, so that it
// notices when we are stopped and can continue us: whether an ancestor is in
// our session and in another group. (The kernel asks the same before it lets
// Ctrl-Z stop somebody.)
func jobControlled() bool {
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
