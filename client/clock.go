package client

import (
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
)

// bootTime is a clock that nobody can set and that goes on while the machine is
// suspended. It is a variable for tests.
var bootTime = func() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// sidecarClock maps moments on the sidecar's clock to ours, never too late.
//
// An answer was counted after its request was sent. So (our clock before the
// request) - (counted_at) is at most the true difference of the clocks, and the
// largest of these found is the best. With it, a message tells how old it is,
// even if this process was stopped before it read it, or lives in another time
// namespace than the sidecar.
type sidecarClock struct {
	difference time.Duration
	known      bool
}

// answered learns from one request and its answer.
func (c *sidecarClock) answered(sent time.Duration, countedAt *durationpb.Duration) {
	if d := sent - countedAt.AsDuration(); !c.known || d > c.difference {
		c.difference, c.known = d, true
	}
}

// ours is a moment of the sidecar's clock on our clock.
func (c *sidecarClock) ours(at time.Duration) time.Duration { return at + c.difference }

// endOf is the moment on the sidecar's clock at which left, counted at countedAt, is
// over.
func endOf(countedAt, left *durationpb.Duration) time.Duration {
	return countedAt.AsDuration() + left.AsDuration()
}
