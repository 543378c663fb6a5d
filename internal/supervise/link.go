package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The front and the supervisor talk through a pair of sockets, in packets of text:
// KIND NUMBER TEXT. The end of the one is seen by the other as the end of its socket.

// Kinds of messages, to the supervisor and from it.
const (
	kindSignal = "signal" // the front got signal NUMBER
	kindAsk    = "ask"    // for kindUntil

	// KindStarted: the program runs as process NUMBER.
	KindStarted = "started"
	// KindStopped: the program was stopped.
	KindStopped = "stopped"
	// KindSay: TEXT is for stderr.
	KindSay = "say"
	// KindUntil: when the boot-time clock shows NUMBER ns and the supervisor does not give a
	// later moment, the program must be killed. 0: there is no program.
	KindUntil = "until"
	// KindEnded: it is all over, with exit status NUMBER. TEXT is the number of the signal
	// that has ended the program, 0 for none.
	KindEnded = "ended"
)

// Message is what one process tells the other.
type Message struct {
	Kind   string
	Number int64
	Text   string
}

const maxMessage = 32 << 10

// link is one end.
type link struct {
	conn net.Conn
	raw  syscall.RawConn // the same
}

// socketPair makes both ends. The second is a number, for a process to be started.
func socketPair() (link, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return link{}, 0, fmt.Errorf("make a pair of sockets: %w", err)
	}
	l, err := newLink(fds[0])
	if err != nil {
		_ = unix.Close(fds[1])
	}
	return l, fds[1], err
}

// newLife gives what the supervisor has open for as long as it lives, and nobody else. Its end
// continues this process, which may be stopped and could not see it then.
func newLife() (int, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, fmt.Errorf("make a pipe: %w", err)
	}
	for _, set := range [][2]int{ // the first end stays open with this process
		{unix.F_SETOWN, os.Getpid()},
		{unix.F_SETSIG, int(unix.SIGCONT)},
		{unix.F_SETFL, unix.O_ASYNC | unix.O_NONBLOCK},
	} {
		if _, err := unix.FcntlInt(uintptr(fds[0]), set[0], set[1]); err != nil {
			return 0, errors.Join(fmt.Errorf("watch a pipe: %w", err), unix.Close(fds[0]), unix.Close(fds[1]))
		}
	}
	return fds[1], nil
}

func newLink(fd int) (link, error) {
	f := os.NewFile(uintptr(fd), "link")
	defer f.Close() // FileConn has its own
	c, err := net.FileConn(f)
	if err != nil {
		return link{}, err
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return link{}, errors.Join(errNoLink, c.Close())
	}
	raw, err := s.SyscallConn()
	return link{c, raw}, err
}

// send sends a message. Without patience it is dropped when the other process has read
// none for so long that the kernel keeps no more. An error is not worth telling: that the
// other is gone is seen by reading.
func (l link) send(patient bool, kind string, number int64, text string) {
	if len(text) > maxMessage-64 {
		text = text[:maxMessage-64]
	}
	message := fmt.Appendf(nil, "%s %d %s", kind, number, text)
	if patient {
		_, _ = l.conn.Write(message)
		return
	}
	// Not by a deadline: on a busy machine it may be over before the message is sent.
	_ = l.raw.Write(func(fd uintptr) bool {
		_, _ = unix.SendmsgN(int(fd), message, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
}

// receive gives messages to f until the other process is gone.
func (l link) receive(f func(Message)) {
	buf := make([]byte, maxMessage)
	for {
		n, err := l.conn.Read(buf)
		if errors.Is(err, unix.ECONNRESET) {
			continue // it has ended, and not read everything; what it said comes after this
		}
		if n == 0 || err != nil {
			return
		}
		kind, rest, _ := strings.Cut(string(buf[:n]), " ")
		number, text, _ := strings.Cut(rest, " ")
		value, err := strconv.ParseInt(number, 10, 64)
		if err == nil {
			f(Message{Kind: kind, Number: value, Text: text})
		}
	}
}

// errNoLink: the number that the supervisor was started with is not that of a socket.
var errNoLink = errors.New("this is not how a supervisor is started")
