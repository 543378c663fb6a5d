package heartbeat

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestTimesOfTheBeats: an interval after a good answer, and after failures a
// sixteenth of it, an eighth, and then a quarter each; a good answer starts that again.
func TestTimesOfTheBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sixteenth = time.Second
		const interval = 16 * sixteenth
		ctx, cancel := context.WithCancel(t.Context())
		clock := lock.GoTime()
		answers := []error{nil, errDown, errDown, errDown, errDown, nil, errDown, errDown, nil}
		var sent []time.Duration
		k, wait := start(t, ctx, Options{TTL: 4 * interval, Interval: interval, Clock: clock, Beat: func(context.Context) error {
			sent = append(sent, clock())
			err := answers[len(sent)-1]
			if len(sent) == len(answers) {
				cancel()
			}
			return err
		}})
		_ = wait()
		if k.ValidFor() == 0 {
			t.Error("the lease is lost")
		}
		want := []time.Duration{16, 32, 33, 35, 39, 43, 59, 60, 62}
		for i := range want {
			want[i] *= sixteenth
		}
		if !slices.Equal(sent, want) {
			t.Errorf("sent at\n%v, want\n%v", sent, want)
		}
	})
}

// TestAFailureOfTheLateBeatIsOldNews: the one beside it was answered, so its failure
// makes neither jeopardy nor another try.
func TestAFailureOfTheLateBeatIsOldNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		const interval = 4 * time.Second
		var n atomic.Int32
		k, wait := start(t, ctx, Options{TTL: 60 * time.Second, Interval: interval, Beat: func(ctx context.Context) error {
			if n.Add(1) == 1 {
				<-ctx.Done() // 4s after it was sent, at 8s
				return errDown
			}
			return nil // sent at 6s
		}})
		time.Sleep(7 * time.Second)
		for range 29 {
			if got := n.Load(); k.State() != Alive || got != 2 {
				t.Fatalf("%v after %d beats, want Alive after 2", k.State(), got)
			}
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		_ = wait()
	})
}

// TestAnAnswerOutOfOrder: the beat that was sent first is answered last, and does not
// take back what the other has brought.
func TestAnAnswerOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		const interval = 4 * time.Second
		var n atomic.Int32
		clock := lock.GoTime()
		k, wait := start(t, ctx, Options{TTL: 60 * time.Second, Interval: interval, Clock: clock, Beat: func(context.Context) error {
			if n.Add(1) == 1 {
				time.Sleep(3 * time.Second) // from 4s to 7s
			}
			return nil // the second: at 6s
		}})
		<-k.News() // late
		<-k.News() // the second
		for range 20 {
			if relied, _ := k.Until(clock()); relied != 60*time.Second { // 6s + TTL - margin
				t.Fatalf("at %v: valid until %v, want 60s", clock(), relied)
			}
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		_ = wait()
	})
}

// TestBeatsThatHang are at most four, also when they do not listen to their ctx; and Run
// waits for each.
func TestBeatsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var flying atomic.Int32
		hang := make(chan struct{})
		_, wait := start(t, ctx, Options{TTL: time.Minute, Interval: time.Second, Beat: func(context.Context) error {
			flying.Add(1)
			<-hang
			time.Sleep(time.Second)
			flying.Add(-1)
			return errDown
		}})
		time.Sleep(30 * time.Second)
		if got := flying.Load(); got != 4 {
			t.Errorf("%d beats hang, want 4", got)
		}
		cancel()
		close(hang)
		if err := wait(); !errors.Is(err, context.Canceled) || flying.Load() != 0 {
			t.Errorf("Run = %v while %d beats go on", err, flying.Load())
		}
	})
}

// TestTheEndIsToldWithItsCause: whoever finds the lease lost while another goroutine is
// writing down why waits for that.
func TestTheEndIsToldWithItsCause(t *testing.T) {
	for name, ask := range map[string]func(k *Keeper) bool{
		"Err":   func(k *Keeper) bool { return errors.Is(k.Err(), ErrExpired) },
		"Kept":  func(k *Keeper) bool { return k.Kept() == time.Second },
		"Until": func(k *Keeper) bool { relied, kept := k.Until(0); return relied == 0 && kept == time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := New(Options{TTL: ttl, Clock: lock.GoTime()})
				k.deadline.Store(over) // lose, between its two steps
				answer := make(chan bool, 1)
				go func() { answer <- ask(k) }()
				synctest.Wait()
				select {
				case <-answer:
					t.Error("answered before the cause was there")
					return
				default:
				}
				k.err, k.kept = ErrExpired, time.Second
				close(k.done)
				if !<-answer {
					t.Error("another cause is told")
				}
			})
		})
	}
}

// TestInTheLastNanosecond all that is asked of a lease finds it alive.
func TestInTheLastNanosecond(t *testing.T) {
	var now time.Duration
	last := func() *Keeper {
		now = 0
		k := New(Options{TTL: ttl, Clock: func() time.Duration { return now }})
		now = 9*time.Second - 1
		return k
	}
	if got := last().Kept(); got != time.Second+1 {
		t.Errorf("kept for %v, want the margin and what is left", got)
	}
	k := last()
	k.Lose()
	if !errors.Is(k.Err(), lock.ErrLeaseLost) {
		t.Errorf("lost by %v, want the word of the store", k.Err())
	}
	k = last()
	k.renew(now)
	if got := k.ValidFor(); got != 9*time.Second {
		t.Errorf("renewed for %v, want 9s", got)
	}
}

// TestBeatsOnBootTime: without a clock of a test the kernel says when the next beat is due.
func TestBeatsOnBootTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent atomic.Int32
	k := New(Options{TTL: time.Hour, Interval: 5 * time.Millisecond, Opened: lock.BootTime(), Beat: func(context.Context) error {
		if sent.Add(1) == 3 {
			cancel()
		}
		return nil
	}})
	if err := k.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
}

func TestResultNames(t *testing.T) {
	for r, want := range map[Result]string{Answered: "ok", Failed: "failed", Refused: "lost", 0: "unknown", 9: "unknown"} {
		if got := r.String(); got != want {
			t.Errorf("%d is called %q, want %q", r, got, want)
		}
	}
}
