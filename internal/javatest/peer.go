package javatest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Peer is a Java program that runs. It does one thing at a time.
type Peer struct {
	t      testing.TB
	name   string
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr *tail
	late   *time.Timer // ends it when an answer does not come
	kill   func()
}

// answerTimeout is for everything that a peer is asked to do: on a busy machine 50 locks one after the other take
// more than a minute.
const answerTimeout = 5 * time.Minute

// Kinds of Curator's locks.
const (
	Mutex     = "mutex"     // InterProcessMutex: also for Read
	ReadWrite = "readwrite" // InterProcessReadWriteLock
)

// Curator is a program that locks a path with Apache Curator. servers are
// host:port, separated by commas, with a chroot after the last if there is one.
func Curator(t testing.TB, c *Counter, name, servers, kind, path string) *Peer {
	t.Helper()
	return start(t, "CuratorPeer", c, name, servers, kind, path)
}

// Database is one that ShedLock uses.
type Database struct {
	URL            string // of JDBC
	User, Password string
	Table          string
}

// ShedLock is a program that locks a name with ShedLock's
// JdbcTemplateLockProvider on the time of the database.
func ShedLock(t testing.TB, c *Counter, name string, d Database, lock string) *Peer {
	t.Helper()
	return start(t, "ShedLockPeer", c, name, d.URL, d.User, d.Password, d.Table, lock)
}

// Unlocked is a program that locks nothing.
func Unlocked(t testing.TB, c *Counter, name string) *Peer {
	t.Helper()
	return start(t, "UnlockedPeer", c, name)
}

// start starts a program and returns when it has reached its store. It ends
// with the test, and with this process however that ends: its standard input
// ends then.
func start(t testing.TB, class string, c *Counter, name string, args ...string) *Peer {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{
		"-XX:-UsePerfData", // its files are those of all processes that had the same number; a warning about one would be on standard output
		"-Xmx64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-cp", filepath.Join(dir, "classes") + ":" + filepath.Join(dir, "lib", "*"),
		"com.locksidecar.javatest." + class, c.dir, name,
	}, args...)
	cmd := exec.CommandContext(t.Context(), "java", args...)
	p := &Peer{t: t, name: name, stderr: &tail{}}
	cmd.Stderr = p.stderr
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p.out = bufio.NewScanner(out)
	p.kill = func() { _ = cmd.Process.Kill() } // it may be gone already
	p.late = time.AfterFunc(answerTimeout, p.kill)
	t.Cleanup(func() {
		p.late.Stop()
		p.kill()
		_ = cmd.Wait() // it was killed: the status says nothing
	})
	p.want("ready")
	return p
}

// Count lets the program lock, write or read the counter, and unlock, so many
// times. It may be called by another goroutine than the test's.
func (p *Peer) Count(m Mode, n int) error {
	answer, err := p.ask("count", string(m), strconv.Itoa(n))
	if err != nil || answer != "done" {
		return fmt.Errorf("%s: count: %q: %w", p.name, answer, err)
	}
	return nil
}

// Enter lets the program take the lock within the time and keep it.
func (p *Peer) Enter(m Mode, wait time.Duration) bool {
	p.t.Helper()
	answer, err := p.ask("try", string(m), strconv.FormatInt(wait.Milliseconds(), 10))
	if err != nil || answer != "taken" && answer != "held" {
		p.t.Fatalf("%s: enter: %q: %v", p.name, answer, err)
	}
	return answer == "taken"
}

// Leave lets the program give back what Enter took.
func (p *Peer) Leave(m Mode) {
	p.t.Helper()
	if answer, err := p.ask("leave", string(m)); err != nil || answer != "done" {
		p.t.Fatalf("%s: leave: %q: %v", p.name, answer, err)
	}
}

func (p *Peer) ask(words ...string) (string, error) {
	if _, err := io.WriteString(p.in, strings.Join(words, " ")+"\n"); err != nil {
		return "", fmt.Errorf("%w\n%s", err, p.stderr)
	}
	return p.answer()
}

func (p *Peer) answer() (string, error) {
	p.late.Reset(answerTimeout)
	defer p.late.Stop()
	if !p.out.Scan() {
		return "", fmt.Errorf("it ended or took longer than %s: %w\n%s", answerTimeout, io.ErrUnexpectedEOF, p.stderr)
	}
	return p.out.Text(), nil
}

func (p *Peer) want(line string) {
	p.t.Helper()
	if answer, err := p.answer(); err != nil || answer != line {
		p.t.Fatalf("%s: %q: %v", p.name, answer, err)
	}
}

// tail keeps the end of what a program writes to its standard error.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailBytes = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if extra := t.buf.Len() - tailBytes; extra > 0 {
		t.buf.Next(extra)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
