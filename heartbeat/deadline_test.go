package heartbeat

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := lock.GoTime()
		var reached atomic.Int64
		d := NewDeadline(clock, 8*time.Second, func() { reached.Store(int64(clock())) })
		time.Sleep(6 * time.Second)
		if !d.Extend(8*time.Second) || d.Remaining() != 8*time.Second {
			t.Fatalf("Remaining = %v after Extend", d.Remaining())
		}
		d.Extend(time.Second) // nearer: nothing changes
		d.Shorten(time.Minute)
		if d.Remaining() != 8*time.Second {
			t.Errorf("Remaining = %v", d.Remaining())
		}
		time.Sleep(10 * time.Second)
		if got := time.Duration(reached.Load()); got != 14*time.Second {
			t.Errorf("reached at %v, want 14s", got)
		}
		if d.Extend(time.Minute) || d.Remaining() != 0 {
			t.Error("a deadline that was reached came back")
		}
	})
}

func TestDeadlineShorten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := lock.GoTime()
		done := make(chan struct{})
		d := NewDeadline(clock, time.Hour, func() { close(done) })
		time.Sleep(time.Second)
		d.Shorten(2 * time.Second)
		<-done
		if clock() != 3*time.Second {
			t.Errorf("reached at %v, want 3s", clock())
		}
	})
}

func TestDeadlineStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDeadline(lock.GoTime(), time.Second, func() { t.Error("called after Stop") })
		d.Stop()
		time.Sleep(time.Minute)
		if d.Remaining() != 0 || d.Extend(time.Second) {
			t.Error("a stopped deadline has time left")
		}
	})
}

func TestDeadlineIsNotExtendedAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := lock.GoTime()
		var jump atomic.Int64
		clock := func() time.Duration { return base() + time.Duration(jump.Load()) }
		done := make(chan struct{})
		d := NewDeadline(clock, time.Hour, func() { close(done) })
		jump.Store(int64(2 * time.Hour))
		if d.Extend(time.Hour) || d.Remaining() != 0 {
			t.Error("the clock is past the deadline and it could be extended")
		}
		<-done
		if base() > maxDeadlineStep {
			t.Errorf("noticed after %v", base())
		}
	})
}
