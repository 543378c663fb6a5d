package supervise

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervisorComm is the supervisor's name in ps(1) and top(1). It is not that of the program, so
// that killall(1) does not find both.
const supervisorComm = "lock-supervisor"

// shared is how long after one process the other gets a signal that was sent to
// both. The program has it from the same sender then.
const shared = 50 * time.Millisecond

// Front is the front, as the supervisor sees it.
type Front struct {
	link    link
	pid     int  // of the front
	group   int  // its process group
	joined  bool // the program is in it
	signals chan syscall.Signal
	gone    chan struct{}
	until   atomic.Int64
	endedBy atomic.Int64
	follows bool // it was told that the program is stopped

	mu   sync.Mutex // messages are sent one after the other
	told sync.Mutex
	last map[syscall.Signal]time.Time // when the front got it
}

// Supervised tells whether this process was started as a supervisor, by StartSupervisor: then front is not
// nil, and args are those of StartSupervisor. Else args are argv without the name.
func Supervised(argv []string) (front *Front, args []string, err error) {
	if len(argv) < 3 || argv[0] != supervisorName {
		return nil, argv[1:], nil
	}
	fd, err1 := strconv.Atoi(argv[1])
	life, err2 := strconv.Atoi(argv[2])
	if err1 != nil || err2 != nil {
		return nil, nil, errNoLink
	}
	unix.CloseOnExec(fd)
	unix.CloseOnExec(life)
	l, err := newLink(fd)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNoLink, err)
	}
	f := &Front{
		link: l, pid: os.Getppid(), signals: make(chan syscall.Signal, 16), gone: make(chan struct{}),
		last: map[syscall.Signal]time.Time{},
	}
	f.group, _ = unix.Getpgid(f.pid)                                   // gone: then no program is started
	_ = os.WriteFile("/proc/self/comm", []byte(supervisorComm), 0o600) // else ps(1) calls it "exe"
	// Nothing that is sent to all processes of a service or a session ends the supervisor
	// before the program.
	own := make(chan os.Signal, 16)
	Notify(own, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	go f.passOn(own) // these two end with the process
	go f.receive()
	return f, argv[3:], nil
}

// Join is the process group of the front, which the program is to be in.
func (f *Front) Join() int {
	f.joined = true
	return f.group
}

// Signals are those that the front got, and those that somebody sent to the supervisor alone.
func (f *Front) Signals() <-chan syscall.Signal { return f.signals }

// Gone is closed when the front has ended.
func (f *Front) Gone() <-chan struct{} { return f.gone }

func (f *Front) receive() {
	defer close(f.gone)
	f.link.receive(func(m Message) {
		switch m.Kind {
		case kindAsk:
			f.send(false, KindUntil, f.until.Load(), "")
		case kindSignal:
			s := syscall.Signal(m.Number)
			f.told.Lock()
			f.last[s] = time.Now()
			f.told.Unlock()
			f.got(s)
		}
	})
}

// passOn treats a signal as one of the front's, if it is one that asks a program to do
// something and the front does not get it too: lists of holders name the supervisor's pid.
func (f *Front) passOn(own <-chan os.Signal) {
	for sig := range own {
		s, _ := sig.(syscall.Signal) // what Notify sends on Unix
		switch s {
		case syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
			continue
		}
		came := time.Now()
		time.Sleep(shared)
		f.told.Lock()
		both := f.last[s].After(came.Add(-shared))
		f.told.Unlock()
		if !both {
			f.got(s)
		}
	}
}

func (f *Front) got(s syscall.Signal) {
	select {
	case f.signals <- s:
	default: // nobody has read sixteen of them
	}
}

func (f *Front) send(patient bool, kind string, number int64, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.link.send(patient, kind, number, text)
}

// Write makes the front print text on its stderr. It never waits for long: text that
// nobody reads is dropped.
func (f *Front) Write(text []byte) (int, error) {
	f.send(false, KindSay, 0, string(text))
	return len(text), nil
}

// Started tells that the program runs, and what Until was told before.
func (f *Front) Started(pid int) {
	f.send(true, KindUntil, f.until.Load(), "")
	f.send(true, KindStarted, int64(pid), "")
}

// Changed tells that the program was stopped; or sees to it that the front, which may have
// stopped itself therefore, goes on as the program does.
//
// A program in the front's group that Ctrl-Z has stopped goes on with the group when
// there is no shell to continue it. Without us between, the kernel would not have stopped
// it: it takes the supervisor, in a group of its own, for a shell.
func (f *Front) Changed(s State) {
	switch {
	case s.By == syscall.SIGTSTP && f.joined && !isJob(f.pid):
		_ = syscall.Kill(-f.group, syscall.SIGCONT)
	case s.Stopped:
		f.follows = true
		f.send(false, KindStopped, 0, "")
	default:
		f.wake()
	}
}

func (f *Front) wake() {
	if f.follows && os.Getppid() == f.pid {
		_ = syscall.Kill(f.pid, syscall.SIGCONT)
	}
	f.follows = false
}

// Until says when the front must kill the program if the supervisor does not tell it a later
// moment: a moment of the boot-time clock.
func (f *Front) Until(moment time.Duration) { f.until.Store(int64(moment)) }

// EndedBy notes the signal that has ended the program.
func (f *Front) EndedBy(s syscall.Signal) { f.endedBy.Store(int64(s)) }

// Ended tells the exit status, as the last thing that the supervisor does. It waits for a
// front that is stopped.
func (f *Front) Ended(code int) {
	f.wake()
	f.send(true, KindEnded, int64(code), strconv.FormatInt(f.endedBy.Load(), 10))
}
