package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a terminal with a program on it.
type screen struct {
	*program
	master *os.File
	seen   *buffer
}

// launchOnTerminal starts a program as the leader of a session of its own, as a
// terminal emulator starts a shell.
func launchOnTerminal(t *testing.T, env []string, path string, args ...string) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = cleanEnv(append(env, "PS1=$ ", "TERM=dumb", "HISTFILE=")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	s := &screen{
		program: &program{t: t, cmd: cmd, out: &buffer{}, err: &buffer{}, exited: make(chan struct{})},
		master:  master, seen: &buffer{},
	}
	go func() {
		defer close(s.exited)
		_ = cmd.Wait()
		s.code = cmd.ProcessState.ExitCode()
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = s.seen.Write(buf[:n])
			if err != nil { // EIO when nobody has the terminal any more
				return
			}
		}
	}()
	t.Cleanup(func() {
		s.signal(syscall.SIGKILL)
		<-s.exited
		select {
		case <-read:
			_ = master.Close()
		case <-time.After(patience): // a close would wait, too
			t.Error("something is left that has the terminal")
		}
		if t.Failed() {
			t.Logf("on the terminal:\n%s", s.seen)
		}
	})
	return s
}

func (s *screen) write(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) shows(text string) {
	s.t.Helper()
	eventually(s.t, "the terminal shows "+text, func() bool { return strings.Contains(s.seen.String(), text) })
}

// foreground is the process group that has the terminal.
func (s *screen) foreground() int {
	s.t.Helper()
	group, err := unix.IoctlGetInt(int(s.master.Fd()), unix.TIOCGPGRP)
	if err != nil {
		s.t.Fatal(err)
	}
	return group
}

// group is the processes of a process group.
func group(t *testing.T, id int) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		if its, err := unix.Getpgid(pid); err == nil && its == id { // else it has ended
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		t.Fatalf("nobody is in group %d", id)
	}
	return pids
}

func TestTerminalRead(t *testing.T) {
	side := serveProgram(t)
	s := launchOnTerminal(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `echo ready; read line; echo "got <$line>"`)
	s.shows("ready")
	s.write("hello\n")
	s.shows("got <hello>")
	if code := s.wait(); code != 0 {
		t.Errorf("status %d", code)
	}
}

// In a pipeline the others may read from the terminal too, so CMD gets it only
// when it asks.
func TestTerminalReadInAPipeline(t *testing.T) {
	side := serveProgram(t)
	s := launchOnTerminal(t, nil, "sh", "-c", binary+` run --socket `+side.socket+` a -- sh -c 'echo ready >&2; read line; echo "got <$line>"' | cat`)
	s.shows("ready")
	s.write("hello\n")
	s.shows("got <hello>")
	if code := s.wait(); code != 0 {
		t.Errorf("status %d", code)
	}
}

func TestTerminalInterrupt(t *testing.T) {
	side := serveProgram(t)
	s := launchOnTerminal(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done`)
	s.shows("ready")
	s.write("\x03")
	s.shows("caught")
	if code := s.wait(); code != 9 {
		t.Errorf("status %d", code)
	}
}

// A shell in CMD has a group of its own on the terminal; suspend stops run with it.
func TestTerminalSuspend(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	side := serveProgram(t)
	s := launchOnTerminal(t, []string{"LOCKSIDECAR=" + binary, "LOCKSIDECAR_SOCKET=" + side.socket}, "bash", "--norc", "--noprofile", "-i")
	s.write("$LOCKSIDECAR run a -- bash --norc --noprofile -i\n")
	s.write("echo in\"\"ner\n")
	s.shows("inner")
	s.write("suspend\n")
	s.shows("Stopped")
	s.write("echo out\"\"er $LOCKSIDECAR_LOCK_ID.\n")
	s.shows("outer .")
	s.write("fg\n")
	s.write("echo back ${LOCKSIDECAR_LOCK_ID:+agai\"\"n}\n")
	s.shows("back again")
	s.write("exit 3\n")
	s.write("echo sta\"\"tus $?\n")
	s.shows("status 3")
	s.write("exit\n")
	s.wait()
}

// Ctrl-Z stops CMD and run, as one job of the shell; fg continues both.
func TestTerminalStopAndContinue(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	side := serveProgram(t)
	s := launchOnTerminal(t, []string{"LOCKSIDECAR=" + binary, "LOCKSIDECAR_SOCKET=" + side.socket}, "bash", "--norc", "--noprofile", "-i")
	s.write("$LOCKSIDECAR run a -- sh -c 'echo re\"\"ady; read line; echo \"go\"\"t <$line>\"'\n")
	s.shows("ready")
	job := s.foreground()
	s.write("\x1a")
	s.shows("Stopped")
	// The shell sees that run has stopped. On a busy machine CMD is still to stop then, as any program that another one has
	// started, and the kernel may give its read what is typed before.
	eventually(t, "the whole job is stopped", func() bool { return !slices.ContainsFunc(group(t, job), func(pid int) bool { return !frozen(pid) }) })
	s.write("echo the shell \"\"reads\n")
	s.shows("the shell reads")
	s.write("fg\n")
	eventually(t, "the job is in front", func() bool { return s.foreground() == job })
	s.write("hello\n")
	s.shows("got <hello>")
	s.write("exit\n")
	s.wait()
}

// Where no shell could continue it (ssh -t, xterm -e, docker run -it), Ctrl-Z does not
// stop CMD, as the kernel has it without run.
func TestTerminalStopWithoutAShell(t *testing.T) {
	side := serveProgram(t)
	s := launchOnTerminal(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `echo re""ady; read line; echo "go""t <$line>"`)
	s.shows("ready")
	s.write("\x1a")
	s.shows("^Z")
	s.write("hello\n")
	s.shows("got <hello>")
	if code := s.wait(); code != 0 {
		t.Errorf("status %d", code)
	}
}
