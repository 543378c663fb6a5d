package localapi

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// A reading of the clock is a system call. A pair makes four: each request is looked at when it has come, the
// grant when the store has answered, and its times when they are sent.
func TestClockIsReadSeldom(t *testing.T) {
	var read atomic.Int64
	clock := func() time.Duration {
		read.Add(1)
		return lock.BootTime()
	}
	s := start(t, func(o *session.Options, api *Options) { o.Clock, api.Clock = clock, clock })
	x := s.says(t, opening)
	x.answer()
	const pairs = 300
	before := read.Load()
	for i := range pairs {
		x.say(fmt.Sprintf(`{"requestId":"a%d","acquire":{"resource":"r"}}`+"\n", i))
		id := x.answer().GetGranted().GetLockId()
		x.say(fmt.Sprintf(`{"requestId":"r%d","release":{"lockId":%q}}`+"\n", i, id))
		x.answer()
	}
	n := read.Load() - before
	t.Logf("%d readings for %d pairs", n, pairs)
	if n > 5*pairs { // heartbeats and timers read it, too
		t.Errorf("%d readings for %d pairs, want four each", n, pairs)
	}
}
