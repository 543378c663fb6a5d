package supervise

import (
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What the supervisor said last is heard also when it has ended before it read what the
// front had asked: else its end looks like a death. The kernel tells of what was not
// read before it gives what was said.
func TestTheLastWordIsHeard(t *testing.T) {
	front, fd, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer front.conn.Close()
	supervisor, err := newLink(fd)
	if err != nil {
		t.Fatal(err)
	}
	front.send(false, kindAsk, 0, "")
	supervisor.send(true, KindUntil, 1, "")
	supervisor.send(true, KindEnded, 7, "0")
	if err := supervisor.conn.Close(); err != nil {
		t.Fatal(err)
	}
	var heard []string
	front.receive(func(m Message) { heard = append(heard, m.Kind) })
	if want := []string{KindUntil, KindEnded}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

const (
	// senderEnv makes this program one that sends numbers through its file 3.
	senderEnv = "LOCKSIDECAR_TEST_SENDER"
	// heardOf is after how many numbers the sender wants to know that they were heard.
	heardOf = 64
)

func beSender() {
	l, err := newLink(3)
	if err != nil {
		os.Exit(1)
	}
	for i, heard := int64(0), make([]byte, 1); ; i++ {
		l.send(false, kindSignal, i, "")
		if i%heardOf == heardOf-1 {
			if n, err := l.conn.Read(heard); n == 0 || err != nil {
				return
			}
		}
	}
}

// A message is not dropped because its sender stands still for a moment, wherever that is: it may be
// a signal, which comes once.
func TestNoMessageIsDroppedByAPause(t *testing.T) {
	l, fd, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	sender := exec.CommandContext(t.Context(), "/proc/self/exe")
	sender.Env = append(os.Environ(), senderEnv+"=1")
	other := os.NewFile(uintptr(fd), "link")
	sender.ExtraFiles = []*os.File{other}
	if err := sender.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sender.Wait() }()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	dropped, done := make(chan int64, 1), make(chan struct{})
	var heard atomic.Int64
	go func() {
		defer close(done)
		l.receive(func(m Message) {
			if next := heard.Add(1) - 1; m.Number != next {
				select {
				case dropped <- next:
				default:
				}
			}
			if m.Number%heardOf == heardOf-1 {
				_, _ = l.conn.Write([]byte{1})
			}
		})
	}()
	for range 100 {
		before := heard.Load()
		eventually(t, "more is heard", func() bool { return heard.Load() > before || len(dropped) > 0 })
		if len(dropped) > 0 {
			break
		}
		_ = sender.Process.Signal(syscall.SIGSTOP)
		time.Sleep(20 * time.Millisecond)
		_ = sender.Process.Signal(syscall.SIGCONT)
	}
	if err := sender.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-done
	select {
	case n := <-dropped:
		t.Errorf("message %d was dropped", n)
	default:
		t.Logf("%d messages", heard.Load())
	}
	_ = l.conn.Close()
}
