package heartbeat

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxInFlight bounds the beats that hang at the same time.
	maxInFlight = 4
	// minTimeout is the least time that a beat is given, however short the interval.
	minTimeout = time.Second
)

// Result is how one beat ended.
type Result uint8

// The results of a beat.
const (
	Answered Result = iota + 1
	Failed          // no answer, or one that tells nothing
	Refused         // the store said that the lease is lost
)

// String gives the name used in metrics.
func (r Result) String() string {
	switch r {
	case Answered:
		return "ok"
	case Failed:
		return "failed"
	case Refused:
		return "lost"
	default:
		return "unknown"
	}
}

// Beat is what is told of a beat that has ended.
type Beat struct {
	Result Result
	Err    error // nil when answered
	Took   time.Duration
	Lag    time.Duration // how much later than planned it was sent
}

// answer is the end of a beat.
type answer struct {
	Beat
	sent time.Duration
}

// beats are what Run knows about the beats of its lease.
type beats struct {
	answers  chan answer
	inFlight int
	next     time.Duration // when the next one is to be sent
	failures int           // in a row
	answered time.Duration // when the last good answer came
}

// Run renews the lease until it is over or ctx ends. It must be called once.
//
//	ErrExpired: the deadline is over and the store was silent.
//	lock.ErrLeaseLost: the store said so, to a beat or to Lose.
//	the cause of ctx: the lease lives on for ValidFor.
//
// Done is closed at the deadline even when a beat hangs; Run returns when all
// its beats have returned.
func (k *Keeper) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	// Nobody is left to take an answer when Run returns, so the channel has room
	// for all of them.
	b := &beats{answers: make(chan answer, maxInFlight), next: k.o.Opened + k.o.Interval}
	defer func() {
		cancel()
		for range b.inFlight {
			<-b.answers
		}
	}()
	alarm := lock.NewAlarm(k.clock)
	defer alarm.Close()
	for {
		left := k.ValidFor()
		if left == 0 {
			return k.Err()
		}
		alarm.Reset(min(left, k.step(ctx, b, left)))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-k.done:
		case a := <-b.answers:
			b.inFlight--
			k.take(b, a)
		case <-alarm.C:
		}
	}
}

// step sends a beat when it is time, and tells when to look again.
//
// Model: lease.BEAT.
func (k *Keeper) step(ctx context.Context, b *beats, left time.Duration) time.Duration {
	now := k.o.Clock()
	if now < b.next {
		return b.next - now
	}
	if b.inFlight > 0 { // half an interval without an answer
		k.setJeopardy(true)
	}
	late := k.o.Interval / 2
	if b.inFlight < maxInFlight {
		b.inFlight++
		lag := now - b.next
		ctx, cancel := context.WithTimeout(ctx, min(left, max(k.o.Interval, minTimeout)))
		go func() {
			defer cancel()
			err := k.o.Beat(ctx)
			b.answers <- answer{sent: now, Beat: Beat{Result: resultOf(err), Err: err, Took: k.o.Clock() - now, Lag: lag}}
		}()
	}
	b.next = now + late
	return late
}

func resultOf(err error) Result {
	switch {
	case err == nil:
		return Answered
	case errors.Is(err, lock.ErrLeaseLost):
		return Refused
	default:
		return Failed
	}
}

// take draws the conclusions from the end of a beat.
func (k *Keeper) take(b *beats, a answer) {
	k.o.Observe(a.Beat)
	now := k.o.Clock()
	switch a.Result {
	case Answered:
		k.renew(a.sent)
		b.failures, b.answered = 0, now
		b.next = a.sent + k.o.Interval
		k.jeopardy.Store(false)
		k.tell()
	case Refused:
		k.Lose()
	case Failed:
		if a.sent <= b.answered {
			return // sent before the last good answer came: older news than that
		}
		k.setJeopardy(true)
		b.next = min(b.next, now+k.backoff(b.failures))
		b.failures++
	}
}

// backoff is the pause after so many failures before this one: from a sixteenth
// to a quarter of the interval.
func (k *Keeper) backoff(failures int) time.Duration {
	return k.o.Interval / 16 << min(failures, 2)
}
