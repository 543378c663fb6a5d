package lock

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// An alarm on the boot-time clock goes off when its time has come, not before, as often as it is
// set, and leaves nothing behind. The kernel counts the time, so no timer of Go is needed.
func TestAlarmOnBootTime(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := NewAlarm(nil)
	defer a.Close()
	if a.timer != nil {
		t.Fatal("the kernel has no such timers")
	}
	for _, d := range []time.Duration{20 * time.Millisecond, 0, -time.Second, time.Millisecond} {
		set := BootTime()
		a.Reset(time.Hour)
		a.Reset(d)
		<-a.C
		if early := set + d - BootTime(); early > 0 {
			t.Errorf("%s: %s too early", d, early)
		}
	}
	runs := func() bool {
		var left unix.ItimerSpec
		if err := unix.TimerfdGettime(a.fd, &left); err != nil {
			t.Fatal(err)
		}
		return left.Value != unix.Timespec{}
	}
	for _, c := range []struct {
		name string
		set  func()
		want bool
	}{
		{"Reset", func() { a.Reset(time.Hour) }, true},
		{"Stop", a.Stop, false},
	} {
		c.set()
		if runs() != c.want {
			t.Errorf("after %s it runs: %v", c.name, !c.want)
		}
	}
}

// On a clock of a test it goes off at least once a second: the clock may have jumped.
func TestAlarmOnAnotherClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := GoTime()
		a := NewAlarm(clock)
		defer a.Close()
		for d, want := range map[time.Duration]time.Duration{
			time.Hour: maxStep, maxStep / 2: maxStep / 2, 0: 0,
		} {
			set := clock()
			a.Reset(d)
			<-a.C
			if took := clock() - set; took != want {
				t.Errorf("set to %s: it goes off after %s, want %s", d, took, want)
			}
		}
		a.Reset(time.Second)
		a.Stop()
		select {
		case <-a.C:
			t.Error("it goes off although it was stopped")
		case <-time.After(time.Minute):
		}
	})
}
