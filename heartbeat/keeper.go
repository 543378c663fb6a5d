package heartbeat

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// ErrExpired: no beat was answered until the deadline. The store may or may not
// have ended the lease; nobody may rely on it any more.
var ErrExpired = errors.New("the lease is over: the store did not answer in time")

// State is how a lease is doing.
type State uint8

// A lease goes from Alive to Jeopardy and back as often as the store makes it,
// and to Lost once.
const (
	Alive    State = iota + 1
	Jeopardy       // the last beat failed or is late; the deadline is not over
	Lost           // never undone
)

// minMargin is the smallest default margin: below it, the time that a notice
// needs on its way to the app would be of the same size.
const minMargin = 50 * time.Millisecond

// Margin is the default of Options.Margin for a lease of that TTL: a tenth of it,
// but at least 50ms.
func Margin(ttl time.Duration) time.Duration { return max(ttl/10, minMargin) }

// Options are what a Keeper needs to know.
type Options struct {
	TTL time.Duration // of the lease in the store, counted by the store from when it carries out a beat

	// Interval is the time from one beat to the next; default TTL/3. A beat that
	// is not answered after half of it is late: another is sent beside it.
	Interval time.Duration

	// Margin is how much earlier than the store the Keeper gives the lease up:
	// the time in which apps stop their work, and the allowance for clocks that do
	// not run at the same speed. Default: see the function Margin.
	Margin time.Duration

	Clock lock.Clock // default lock.BootTime

	// Beat renews the lease, as lock.Lease.Heartbeat: nil, lock.ErrLeaseLost, or
	// any other error for an unknown outcome. It may be called again while a call
	// hangs, and must return soon after its ctx has ended.
	Beat func(ctx context.Context) error

	Opened  time.Duration // Clock before the request was sent that opened the lease
	Observe func(Beat)    // optional; called for each beat that has ended, one at a time
}

// over in Keeper.deadline says that the lease is lost.
const over = math.MinInt64

// Keeper keeps one lease alive. Its methods may be called at the same time by
// many goroutines.
type Keeper struct {
	o        Options
	clock    lock.Clock   // as it was given; nil: BootTime
	deadline atomic.Int64 // on the clock; only ever moves forward, or to over
	jeopardy atomic.Bool
	news     chan struct{}
	done     chan struct{} // closed by whoever moved deadline to over, who wrote these two before:
	err      error
	kept     time.Duration // the store keeps the lease until then, as far as is known
}

// New makes a Keeper for a lease that was just opened. Its time runs at once,
// so Run must follow.
func New(o Options) *Keeper {
	if o.Interval == 0 {
		o.Interval = o.TTL / 3
	}
	if o.Margin == 0 {
		o.Margin = Margin(o.TTL)
	}
	clock := o.Clock
	if clock == nil {
		o.Clock = lock.BootTime
	}
	if o.Observe == nil {
		o.Observe = func(Beat) {}
	}
	k := &Keeper{o: o, clock: clock, news: make(chan struct{}, 1), done: make(chan struct{})}
	k.deadline.Store(int64(o.Opened + o.TTL - o.Margin))
	return k
}

// ValidFor is how long the lease may be relied on without further news; 0 when
// it is lost. It looks at the clock itself: however long the program was stopped
// before the call, it never takes an old answer for a new one. Once it was 0 it
// stays 0.
func (k *Keeper) ValidFor() time.Duration {
	for {
		d := k.deadline.Load()
		if d == over {
			return 0
		}
		if left := time.Duration(d) - k.o.Clock(); left > 0 {
			return left
		}
		k.lose(d, ErrExpired, time.Duration(d)+k.o.Margin)
	}
}

// Until gives the moments on the clock up to which the lease may be relied on
// without further news, 0 when it is lost, and up to which the store is known to
// keep others out: later by the margin, also after the lease has expired, and 0
// when the store itself has said that the lease is lost. now is a reading of
// Options.Clock that was made just before; like ValidFor, it ends the lease when
// that is past its deadline.
func (k *Keeper) Until(now time.Duration) (relied, kept time.Duration) {
	for {
		d := k.deadline.Load()
		if d == over {
			<-k.done // at most a few instructions away
			return 0, k.kept
		}
		if until := time.Duration(d); now < until {
			return until, until + k.o.Margin
		}
		k.lose(d, ErrExpired, time.Duration(d)+k.o.Margin)
	}
}

// State tells how the lease is doing.
func (k *Keeper) State() State {
	switch {
	case k.ValidFor() == 0:
		return Lost
	case k.jeopardy.Load():
		return Jeopardy
	default:
		return Alive
	}
}

// Kept is how long the store is known to keep others out: longer than ValidFor
// by the margin, also after the lease has expired. 0 when the store itself has
// said that the lease is lost.
func (k *Keeper) Kept() time.Duration {
	left := k.ValidFor()
	if left > 0 {
		return left + k.o.Margin
	}
	<-k.done
	return max(0, k.kept-k.o.Clock())
}

// News gets a value after each renewal and each change between Alive and
// Jeopardy. News that nobody has taken yet are one value.
func (k *Keeper) News() <-chan struct{} { return k.news }

// Done is closed when the lease is lost.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Err says why the lease is lost: ErrExpired or lock.ErrLeaseLost. It is nil
// while the lease lives.
func (k *Keeper) Err() error {
	if k.ValidFor() > 0 {
		return nil
	}
	<-k.done // at most a few instructions away
	return k.err
}

// Lose tells the Keeper that the store has said on another road, in answer to
// another request, that the lease is lost.
func (k *Keeper) Lose() {
	for k.ValidFor() > 0 {
		k.lose(k.deadline.Load(), lock.ErrLeaseLost, 0)
	}
}

// lose ends a lease whose deadline is d. When the deadline has moved meanwhile
// it does nothing.
func (k *Keeper) lose(d int64, err error, kept time.Duration) {
	if d == over || !k.deadline.CompareAndSwap(d, over) {
		return
	}
	k.err, k.kept = err, kept
	close(k.done)
}

// renew moves the deadline after a beat that was sent at that moment and was
// answered. An answer that comes after the deadline changes nothing.
//
// Model: lease.RENEWED.
func (k *Keeper) renew(sent time.Duration) {
	next := int64(sent + k.o.TTL - k.o.Margin)
	for k.ValidFor() > 0 {
		d := k.deadline.Load()
		if d == over || next <= d || k.deadline.CompareAndSwap(d, next) {
			return
		}
	}
}

func (k *Keeper) setJeopardy(j bool) {
	if k.jeopardy.Swap(j) != j {
		k.tell()
	}
}

func (k *Keeper) tell() {
	select {
	case k.news <- struct{}{}:
	default:
	}
}
