package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second

var errDown = fmt.Errorf("dial: %w", lock.ErrUnavailable)

// start runs a Keeper whose lease was opened now, and returns a function that
// waits for the end of Run.
func start(t *testing.T, ctx context.Context, o Options) (*Keeper, func() error) {
	t.Helper()
	if o.TTL == 0 {
		o.TTL = ttl
	}
	if o.Clock == nil {
		o.Clock = lock.GoTime()
	}
	o.Opened = o.Clock()
	k := New(o)
	end := make(chan error, 1)
	go func() { end <- k.Run(ctx) }()
	return k, func() error { return <-end }
}

func TestLivesAsLongAsTheStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		clock := lock.GoTime()
		var sent []time.Duration
		k, wait := start(t, ctx, Options{Clock: clock, Beat: func(context.Context) error {
			sent = append(sent, clock())
			time.Sleep(100 * time.Millisecond)
			return nil
		}})
		if got := k.ValidFor(); got != 9*time.Second {
			t.Errorf("ValidFor after opening = %v, want TTL less margin", got)
		}
		for range 4 {
			<-k.News()
			// Counted from before the beat was sent, 100ms ago.
			if got, want := k.ValidFor(), 8900*time.Millisecond; got != want {
				t.Errorf("ValidFor after a beat = %v, want %v", got, want)
			}
			if k.State() != Alive || k.Err() != nil {
				t.Errorf("state %v, err %v, want Alive", k.State(), k.Err())
			}
			if got := k.Kept(); got != 9900*time.Millisecond {
				t.Errorf("Kept = %v", got)
			}
		}
		stop := errors.New("stop")
		cancel(stop)
		if err := wait(); !errors.Is(err, stop) {
			t.Errorf("Run = %v, want the cause of its ctx", err)
		}
		if k.ValidFor() == 0 {
			t.Error("the end of Run must not end the lease")
		}
		for i, s := range sent {
			if want := time.Duration(i+1) * (ttl / 3); s != want {
				t.Errorf("beat %d sent at %v, want %v", i, s, want)
			}
		}
	})
}

func TestExpiresAtTheDeadline(t *testing.T) {
	cases := map[string]func(ctx context.Context) error{
		"the store refuses connections": func(context.Context) error { return errDown },
		"every beat hangs":              func(ctx context.Context) error { <-ctx.Done(); return errDown },
		"answers come too late":         func(context.Context) error { time.Sleep(9 * time.Second); return nil },
		"an unknown kind of error":      func(context.Context) error { return errors.New("?") },
	}
	for name, beat := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := lock.GoTime()
				k, wait := start(t, t.Context(), Options{Clock: clock, Beat: beat})
				<-k.Done()
				if at := clock(); at != 9*time.Second {
					t.Errorf("lost at %v, want 9s: TTL less margin after the opening", at)
				}
				if !errors.Is(k.Err(), ErrExpired) || k.State() != Lost || k.ValidFor() != 0 {
					t.Errorf("err %v, state %v, valid for %v", k.Err(), k.State(), k.ValidFor())
				}
				if got := k.Kept(); got != time.Second {
					t.Errorf("Kept = %v, want the margin", got)
				}
				if err := wait(); !errors.Is(err, ErrExpired) {
					t.Errorf("Run = %v, want ErrExpired", err)
				}
				time.Sleep(time.Minute)
				if k.ValidFor() != 0 || k.Kept() != 0 {
					t.Error("a lost lease came back")
				}
			})
		})
	}
}

func TestJeopardyAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		clock := lock.GoTime()
		var down atomic.Bool
		k, wait := start(t, ctx, Options{Clock: clock, Beat: func(context.Context) error {
			if down.Load() {
				return errDown
			}
			return nil
		}})
		<-k.News()
		down.Store(true)
		<-k.News()
		if k.State() != Jeopardy {
			t.Errorf("state after a failed beat = %v, want Jeopardy", k.State())
		}
		time.Sleep(2 * time.Second) // retries go on, much closer than an interval
		down.Store(false)
		back := clock()
		<-k.News()
		if k.State() != Alive {
			t.Errorf("state = %v, want Alive", k.State())
		}
		if took := clock() - back; took > ttl/3/4 {
			t.Errorf("the next try came %v after the store was back, want at most a quarter of the interval", took)
		}
		cancel()
		_ = wait()
	})
}

func TestLateBeatIsBackedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		clock := lock.GoTime()
		late := ttl/3 + ttl/3/2
		var n atomic.Int32
		k, wait := start(t, ctx, Options{Clock: clock, Beat: func(ctx context.Context) error {
			if n.Add(1) == 1 { // a connection that went dead
				<-ctx.Done()
				return errDown
			}
			time.Sleep(time.Millisecond)
			return nil
		}})
		<-k.News()
		if k.State() != Jeopardy || clock() != late {
			t.Errorf("state %v at %v, want Jeopardy after half an interval without an answer", k.State(), clock())
		}
		<-k.News()
		if k.State() != Alive || clock() != late+time.Millisecond {
			t.Errorf("state %v at %v, want Alive by the second beat", k.State(), clock())
		}
		// The failure of the first, which comes later, is old news.
		time.Sleep(ttl/3/2 + time.Second)
		if k.State() != Alive {
			t.Errorf("state = %v, want Alive", k.State())
		}
		cancel()
		_ = wait()
	})
}

func TestSlowStoreKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var flying, most atomic.Int32
		k, wait := start(t, ctx, Options{Beat: func(ctx context.Context) error {
			most.Store(max(most.Load(), flying.Add(1)))
			defer flying.Add(-1)
			select {
			case <-time.After(3 * time.Second): // almost an interval
				return nil
			case <-ctx.Done():
				return errDown
			}
		}})
		time.Sleep(10 * time.Minute)
		if k.ValidFor() == 0 {
			t.Error("lost, though the store answered each beat")
		}
		if most.Load() > maxInFlight {
			t.Errorf("%d beats at the same time", most.Load())
		}
		cancel()
		_ = wait()
	})
}

func TestTheStoreSaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := lock.GoTime()
		k, wait := start(t, t.Context(), Options{Clock: clock, Beat: func(context.Context) error {
			return fmt.Errorf("heartbeat: %w", lock.ErrLeaseLost)
		}})
		if err := wait(); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Run = %v, want ErrLeaseLost", err)
		}
		if clock() != ttl/3 || k.ValidFor() != 0 || k.Kept() != 0 {
			t.Errorf("at %v, valid for %v, kept %v", clock(), k.ValidFor(), k.Kept())
		}
	})
}

func TestLoseEndsRunWhileABeatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := lock.GoTime()
		k, wait := start(t, t.Context(), Options{Clock: clock, Beat: func(ctx context.Context) error {
			<-ctx.Done()
			return errDown
		}})
		time.Sleep(4 * time.Second)
		k.Lose()
		k.Lose()
		if err := wait(); !errors.Is(err, lock.ErrLeaseLost) || clock() != 4*time.Second {
			t.Errorf("Run = %v at %v, want ErrLeaseLost at once", err, clock())
		}
	})
}

// TestAfterAStop is a program that was stopped, or a machine that was
// suspended, beyond the deadline: the clock has jumped and no timer has fired.
func TestAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := lock.GoTime()
		var jump atomic.Int64
		clock := func() time.Duration { return base() + time.Duration(jump.Load()) }
		k, wait := start(t, t.Context(), Options{Clock: clock, Beat: func(context.Context) error { return nil }})
		time.Sleep(4 * time.Second)
		jump.Store(int64(time.Minute))
		if k.ValidFor() != 0 || !errors.Is(k.Err(), ErrExpired) || k.Kept() != 0 {
			t.Errorf("valid for %v, err %v, kept %v: want expired before anything else ran", k.ValidFor(), k.Err(), k.Kept())
		}
		if err := wait(); !errors.Is(err, ErrExpired) {
			t.Errorf("Run = %v", err)
		}
	})
}

// TestTimersLookAtTheClock is the same without anybody asking: Run notices
// within a second.
func TestTimersLookAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := lock.GoTime()
		var jump atomic.Int64
		clock := func() time.Duration { return base() + time.Duration(jump.Load()) }
		k, wait := start(t, t.Context(), Options{Clock: clock, Beat: func(ctx context.Context) error { <-ctx.Done(); return errDown }})
		time.Sleep(500 * time.Millisecond)
		jump.Store(int64(time.Minute))
		<-k.Done()
		if base() > 500*time.Millisecond+time.Second {
			t.Errorf("noticed after %v", base())
		}
		_ = wait()
	})
}

func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		answers := []error{nil, errDown, lock.ErrLeaseLost}
		_, wait := start(t, t.Context(), Options{
			Beat: func(context.Context) error {
				time.Sleep(10 * time.Millisecond)
				err := answers[0]
				answers = answers[1:]
				return err
			},
			Observe: func(b Beat) { got = append(got, fmt.Sprintf("%v took %v lag %v", b.Result, b.Took, b.Lag)) },
		})
		_ = wait()
		want := "[ok took 10ms lag 0s failed took 10ms lag 0s lost took 10ms lag 0s]"
		if fmt.Sprint(got) != want {
			t.Errorf("observed %v, want %v", got, want)
		}
	})
}

func TestDefaultMargin(t *testing.T) {
	for _, c := range []struct{ ttl, margin time.Duration }{
		{10 * time.Second, time.Second},
		{lock.MinTTL, 50 * time.Millisecond},
		{100 * time.Millisecond, 50 * time.Millisecond},
		{lock.MaxTTL, time.Minute},
	} {
		clock := func() time.Duration { return 0 }
		k := New(Options{TTL: c.ttl, Clock: clock})
		if got := k.ValidFor(); got != c.ttl-c.margin {
			t.Errorf("TTL %v: ValidFor = %v, want %v less", c.ttl, got, c.margin)
		}
		if got := Margin(c.ttl); got != c.margin {
			t.Errorf("TTL %v: margin %v, want %v", c.ttl, got, c.margin)
		}
	}
}

// TestNeverUndone races renewals with the expiry: whoever has once seen 0 must
// see 0 from then on.
func TestNeverUndone(t *testing.T) {
	for range 200 {
		var now atomic.Int64
		k := New(Options{TTL: ttl, Clock: func() time.Duration { return time.Duration(now.Load()) }})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				zero := false
				for range 200 {
					left := k.ValidFor()
					if zero && left > 0 {
						t.Errorf("ValidFor was 0 and is %v", left)
						return
					}
					zero = left == 0
				}
			})
		}
		wg.Go(func() {
			for range 100 {
				sent := time.Duration(now.Load())
				k.renew(sent)
				now.Add(int64(4 * time.Second))
			}
		})
		wg.Go(func() { now.Add(int64(8 * time.Second)) })
		wg.Wait()
	}
}

func BenchmarkValidFor(b *testing.B) {
	k := New(Options{TTL: lock.MaxTTL, Opened: lock.BootTime()})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_ = k.ValidFor()
		}
	})
}

// TestUntil: the moments of a lease that lives, that has expired, and that the
// store has ended.
func TestUntil(t *testing.T) {
	var now time.Duration
	o := Options{TTL: ttl, Clock: func() time.Duration { return now }}
	k := New(o)
	if relied, kept := k.Until(8 * time.Second); relied != 9*time.Second || kept != 10*time.Second {
		t.Errorf("lives until %v, kept until %v", relied, kept)
	}
	now = 9 * time.Second
	for range 2 { // also when somebody else has found it first
		if relied, kept := k.Until(now); relied != 0 || kept != 10*time.Second || !errors.Is(k.Err(), ErrExpired) {
			t.Errorf("expired: lives until %v, kept until %v, %v", relied, kept, k.Err())
		}
	}
	now = 0
	k = New(o)
	k.Lose()
	if relied, kept := k.Until(0); relied != 0 || kept != 0 {
		t.Errorf("ended by the store: lives until %v, kept until %v", relied, kept)
	}
}

// TestTheLastNanosecond of a lease is valid, and the next is not.
func TestTheLastNanosecond(t *testing.T) {
	var now time.Duration
	k := New(Options{TTL: ttl, Clock: func() time.Duration { return now }})
	now = 9*time.Second - 1
	if relied, _ := k.Until(now); relied != 9*time.Second || k.ValidFor() != 1 || k.State() != Alive || k.Err() != nil {
		t.Errorf("before the end: until %v, for %v, %v, %v", relied, k.ValidFor(), k.State(), k.Err())
	}
	now++
	if relied, _ := k.Until(now); relied != 0 || k.ValidFor() != 0 || k.State() != Lost || k.Err() == nil {
		t.Errorf("at the end: until %v, for %v, %v, %v", relied, k.ValidFor(), k.State(), k.Err())
	}
	select {
	case <-k.Done():
	default:
		t.Error("Done is not closed")
	}
	if k.Kept() != time.Second {
		t.Errorf("kept for %v", k.Kept())
	}
}

// TestDefaults: a lease on the clock for production, whose beats nobody counts.
func TestDefaults(t *testing.T) {
	beats := make(chan struct{})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	k := New(Options{TTL: lock.MaxTTL, Interval: time.Millisecond, Opened: lock.BootTime(), Beat: func(context.Context) error { beats <- struct{}{}; return nil }})
	end := make(chan error, 1)
	go func() { end <- k.Run(ctx) }()
	<-beats
	<-k.News()
	stop := errors.New("stop")
	cancel(stop)
	for err := error(nil); err == nil; {
		select {
		case <-beats: // was under way
		case err = <-end:
			if !errors.Is(err, stop) {
				t.Errorf("Run = %v", err)
			}
		}
	}
}

// TestNewsAreOneValue: who comes late reads the news once.
func TestNewsAreOneValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k, wait := start(t, ctx, Options{Beat: func(context.Context) error { return nil }})
		time.Sleep(3*ttl/3 + time.Second)
		<-k.News()
		select {
		case <-k.News():
			t.Error("news are told twice")
		default:
		}
		cancel()
		_ = wait()
	})
}
