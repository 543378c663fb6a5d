package javatest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Mode is how the counter is used.
type Mode string

// The modes.
const (
	Write Mode = "write"
	Read  Mode = "read"
)

// Counter is what the locks of a test protect, outside of any store: a number
// in a file that is read, and written a moment later, so that it loses
// increments when two increment it at a time; and a log in which everybody
// notes when he enters and leaves. The log is appended to by single writes, so
// its order is the order in which things happened: who notes that he enters has
// the lock, and who leaves still has it.
type Counter struct {
	dir   string
	value *os.File // digits in decimal
	log   *os.File // lines: name, what, mode

}

const (
	digits = 10
	pause  = time.Millisecond
)

// NewCounter makes a counter that stands at 0.
func NewCounter(t testing.TB) *Counter {
	t.Helper()
	c := &Counter{dir: t.TempDir()}
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(filepath.Join(c.dir, name), os.O_CREATE|flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() }) // written by write(2), nothing is buffered
		return f
	}
	c.value, c.log = open("value", os.O_RDWR), open("log", os.O_WRONLY|os.O_APPEND)
	if err := c.set(0); err != nil {
		t.Fatal(err)
	}
	return c
}

// Add adds one for somebody of that name, who has the lock.
func (c *Counter) Add(who string) error {
	n, err := c.inside(who, "enter write")
	if err != nil {
		return err
	}
	time.Sleep(pause)
	return errors.Join(c.set(n+1), c.note(who, "leave write"))
}

// Look looks at the value for a while, for somebody who has the lock for
// reading. That it changes meanwhile is found by Check.
func (c *Counter) Look(who string) error {
	n, err := c.inside(who, "enter read")
	if err != nil {
		return err
	}
	time.Sleep(pause)
	again, err := c.get()
	if err == nil && again != n {
		err = c.note(who, "saw a change")
	}
	return errors.Join(err, c.note(who, "leave read"))
}

// Check fails the test unless all increments are there and nobody was inside
// beside a writer.
func (c *Counter) Check(t testing.TB, want int) {
	t.Helper()
	n, err := c.get()
	if err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Errorf("the counter stands at %d after %d increments", n, want)
	}
	log, err := os.ReadFile(c.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, complaint := range read(string(log)) {
		t.Error(complaint)
	}
}

// maxComplaints is enough to see what is wrong.
const maxComplaints = 5

// read plays the log and says what should not have been.
func read(log string) (complaints []string) {
	inside := map[string]string{} // name: mode
	writers := 0
	for line := range strings.Lines(log) {
		if len(complaints) == maxComplaints {
			return append(complaints, "and so on")
		}
		who, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		verb, mode, _ := strings.Cut(what, " ")
		switch {
		case verb == "enter" && (writers > 0 || mode == string(Write) && len(inside) > 0):
			complaints = append(complaints, fmt.Sprintf("%s enters (%s) where these are: %v", who, mode, inside))
		case verb != "enter" && verb != "leave":
			complaints = append(complaints, who+" "+what)
		}
		if mode == string(Write) {
			writers += map[string]int{"enter": 1, "leave": -1}[verb]
		}
		switch verb {
		case "enter":
			inside[who] = mode
		case "leave":
			delete(inside, who)
		}
	}
	if len(inside) > 0 {
		complaints = append(complaints, fmt.Sprintf("these never left: %v", inside))
	}
	return complaints
}

// inside notes that somebody enters and returns the value.
func (c *Counter) inside(who, what string) (int, error) {
	if err := c.note(who, what); err != nil {
		return 0, err
	}
	return c.get()
}

func (c *Counter) note(who, what string) error {
	if _, err := c.log.WriteString(who + " " + what + "\n"); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

func (c *Counter) get() (int, error) {
	var b [digits]byte
	if _, err := c.value.ReadAt(b[:], 0); err != nil {
		return 0, fmt.Errorf("read the counter: %w", err)
	}
	n, err := strconv.Atoi(string(b[:]))
	if err != nil {
		return 0, fmt.Errorf("read the counter: %w", err)
	}
	return n, nil
}

func (c *Counter) set(n int) error {
	if _, err := c.value.WriteAt(fmt.Appendf(nil, "%0*d", digits, n), 0); err != nil {
		return fmt.Errorf("write the counter: %w", err)
	}
	return nil
}
