package lock

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxStep bounds one sleep of an alarm that has only Go's timers. They stand still while
// the machine is suspended, and the clock does not.
const maxStep = time.Second

// Alarm is a timer on a Clock, for one goroutine. On BootTime it goes off as soon as the machine
// is awake after a suspend in which its time has come, and until its time has come it wakes
// nobody. On another clock it goes off at least once a second. So whoever hears
// it must look at the clock.
type Alarm struct {
	C <-chan time.Time // receives when it goes off; the value has no meaning

	timer *time.Timer // nil: a file of the kernel does it
	fd    int
	file  *os.File
	read  sync.WaitGroup
}

// NewAlarm returns an alarm on a clock, which nothing has set yet. nil is BootTime. Close it when
// it is no longer needed.
func NewAlarm(c Clock) *Alarm {
	if c == nil {
		if fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err == nil {
			return bootAlarm(fd)
		}
	}
	t := time.NewTimer(maxStep)
	t.Stop()
	return &Alarm{C: t.C, timer: t}
}

func bootAlarm(fd int) *Alarm {
	rings := make(chan time.Time, 1)
	a := &Alarm{C: rings, fd: fd, file: os.NewFile(uintptr(fd), "alarm")}
	a.read.Go(func() {
		var times [8]byte
		for {
			if _, err := a.file.Read(times[:]); err != nil {
				return // closed
			}
			select {
			case rings <- time.Time{}:
			default: // it has not been heard yet
			}
		}
	})
	return a
}

// Reset has the alarm go off when so much time of the clock has passed, and not when it was
// to go off before.
func (a *Alarm) Reset(d time.Duration) {
	if a.timer != nil {
		a.timer.Reset(min(d, maxStep))
		return
	}
	a.set(max(d, 1)) // 0 would stop it
}

// Stop has it not go off.
func (a *Alarm) Stop() {
	if a.timer != nil {
		a.timer.Stop()
		return
	}
	a.set(0)
}

func (a *Alarm) set(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(a.fd, 0, &spec, nil); err != nil {
		panic("timerfd_settime: " + err.Error()) // it is open, and the time is not negative
	}
}

// Close stops the alarm, and waits for what it has started.
func (a *Alarm) Close() {
	if a.timer != nil {
		a.timer.Stop()
		return
	}
	_ = a.file.Close()
	a.read.Wait()
}
