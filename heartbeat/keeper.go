package heartbeat

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// ErrExpired: no beat was answered until the deadline. The store may or may not
// have ended the lease; nobody may rely on it any more.
var ErrExpired = errors.New("the lease is over: the store did not answer in time")

// State is how a lease is doing.
type State uint8

const (
	Alive    State = iota + 1
	Jeopardy       // the last beat failed or is late; the deadline is not over
	Lost           // never undone
)

// Result is how one beat ended.
type Result uint8

const (
	Answered Result = iota + 1
	Failed          // no answer, or one that tells nothing
	Refused         // the store said that the lease is lost
)

// Beat is told of each beat that has ended.
type Beat struct {
	Result Result
	Took   time.Duration
	Lag    time.Duration // how much later than planned it was sent
}

// Options are what a Keeper needs to know.
type Options struct {
	TTL      time.Duration
	Interval time.Duration // default TTL/3
	Margin   time.Duration // default TTL/10, at least 50ms
	Clock    lock.Clock    // default lock.BootTime
	Beat     func(ctx context.Context) error
	Opened   time.Duration // Clock before the request was sent that opened the lease
	Observe  func(Beat)    // optional
}

// Keeper keeps one lease alive.
type Keeper struct{ o Options }

// New makes a Keeper.
func New(o Options) *Keeper { return &Keeper{o: o} }

// Run renews the lease until it is over or ctx ends.
func (k *Keeper) Run(ctx context.Context) error { return nil }

// ValidFor is how long the lease may be relied on; 0 when it is lost.
func (k *Keeper) ValidFor() time.Duration { return 0 }

// State tells how the lease is doing.
func (k *Keeper) State() State { return Lost }

// Margin is for how long the store keeps the lease after the deadline.
func (k *Keeper) Margin() time.Duration { return k.o.Margin }

// News gets a value after each renewal and change of state.
func (k *Keeper) News() <-chan struct{} { return nil }

// Done is closed when the lease is lost.
func (k *Keeper) Done() <-chan struct{} { return nil }

// Err says why the lease is lost.
func (k *Keeper) Err() error { return nil }

// Lose says that the store has told on another road that the lease is lost.
func (k *Keeper) Lose() {}
