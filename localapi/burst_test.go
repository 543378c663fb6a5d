package localapi

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// patient is a store that answers to a request when those that came with it were handed over.
type patient struct {
	lock.Backend
	waited atomic.Int32 // requests that have waited for others
	waits  atomic.Int32 // that wait
}

func (b *patient) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &patientLease{l, b}, err
}

type patientLease struct {
	lock.Lease
	b *patient
}

func (*patientLease) TellsBlocking() bool { return true }

func (l *patientLease) wait(ctx context.Context) {
	over := make(chan struct{})
	later := lock.Later(ctx, func() { close(over) }) // a second call would panic
	lock.Blocking(ctx)
	if later {
		l.b.waited.Add(1)
		l.b.waits.Add(1)
		<-over
		l.b.waits.Add(-1)
	}
}

func (l *patientLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	l.wait(ctx)
	return l.Lease.Acquire(ctx, q)
}

func (l *patientLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	l.wait(ctx)
	return l.Lease.Release(ctx, r, id)
}

// A store that waits for what was written with a request gets it, or hears that it does not come, whatever that is.
func TestBurstEnds(t *testing.T) {
	const keepAlive = `{"requestId":"k","keepAlive":{}}` + "\n"
	acquire := func(id string) string { return fmt.Sprintf(`{"requestId":%q,"acquire":{"resource":%q}}`+"\n", id, id) }
	for name, c := range map[string]struct {
		said    string
		answers int  // to what was said; the connection may end behind them
		waits   bool // some request has waited for others
		flying  int  // limit of requests in flight; 0: as by default
	}{
		"one alone":                {acquire("a"), 1, false, 0},
		"several":                  {acquire("a") + acquire("b") + acquire("c"), 3, true, 0},
		"nothing for the store":    {acquire("a") + keepAlive, 2, true, 0},
		"empty lines":              {acquire("a") + "\n \n", 1, true, 0},
		"half a line":              {acquire("a") + `{"requestId":"b",`, 1, false, 0},
		"a line and a half":        {acquire("a") + acquire("b") + `{"requestId":"c",`, 2, true, 0},
		"no request":               {acquire("a") + `{"requestId":"b","nonsense":{}}` + "\n", 2, true, 0},
		"no JSON":                  {acquire("a") + "nonsense\n", 1, true, 0},
		"an acquire too many":      {acquire("a") + acquire("b"), 2, true, 1},
		"a release that flies":     {acquire("a") + `{"requestId":"r","release":{"lockId":"none"}}` + "\n", 2, true, 1},
		"more than answers unread": {strings.Repeat(keepAlive, maxUnsent-1) + acquire("a") + strings.Repeat(keepAlive, 2*maxUnsent), 3 * maxUnsent, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := new(patient)
			s := start(t, func(o *session.Options, api *Options) {
				b.Backend = o.Backend
				o.Backend = b
				if c.flying > 0 {
					api.Limits.InFlight = c.flying
				}
			})
			x := s.says(t, opening)
			x.answer()
			x.say(c.said)
			for range c.answers {
				x.answer()
			}
			if n := b.waited.Load(); (n > 0) != c.waits {
				t.Errorf("%d have waited for others, want any: %v", n, c.waits)
			}
			_ = x.c.Close()
			eventually(t, "the session has ended, and the store has nothing of it", func() bool {
				return s.manager.Info().Sessions == 0 && s.manager.Info().Holds == 0
			})
		})
	}
}

// A client that does not read its answers holds up nothing that it has asked of the store: the sidecar takes no more of what it
// has written, so what was taken waits for nothing that stands behind it.
func TestBurstEndsWhereTheClientDoesNotRead(t *testing.T) {
	b := new(patient)
	s := start(t, noNews, func(o *session.Options, api *Options) {
		b.Backend = o.Backend
		o.Backend = b
		api.Limits.Stall = time.Hour
	})
	x := s.says(t, opening)
	x.answer()
	var written atomic.Int64
	var writes sync.WaitGroup
	defer writes.Wait()
	defer x.c.Close()
	writes.Go(func() {
		for i := 0; ; i++ {
			piece := fmt.Sprintf(`{"requestId":"a%d","acquire":{"resource":"r%[1]d"}}`+"\n", i)
			for range 20 {
				piece += fmt.Sprintf(`{"requestId":%q,"keepAlive":{}}`+"\n", strings.Repeat("k", maxRequestID))
			}
			if _, err := io.WriteString(x.c, piece); err != nil {
				return
			}
			written.Add(1)
		}
	})
	last, since := written.Load(), time.Now()
	eventually(t, "nothing more is taken, and something has waited for others", func() bool {
		if n := written.Load(); n != last || s.server.standing.Load() == 0 || b.waited.Load() == 0 {
			last, since = n, time.Now()
		}
		return time.Since(since) > time.Second/2
	})
	eventually(t, "nothing waits for what is not taken", func() bool { return b.waits.Load() == 0 })
}

// What the receiver does itself, because too much is in flight, waits for nothing that it would have to receive.
func TestBurstOfTooMany(t *testing.T) {
	b := new(patient)
	s := start(t, func(o *session.Options, api *Options) {
		b.Backend = o.Backend
		o.Backend = b
		api.Limits.InFlight = 1
	})
	x := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"a"}}`+"\n")
	x.answer()
	id := x.answer().GetGranted().GetLockId()
	x.say(`{"requestId":"2","acquire":{"resource":"b"}}` + "\n" +
		fmt.Sprintf(`{"requestId":"3","release":{"lockId":%q}}`+"\n", id) +
		`{"requestId":"4","keepAlive":{}}` + "\n")
	for range 3 {
		x.answer()
	}
	if n := b.waited.Load(); n != 1 {
		t.Errorf("%d have waited, want the acquire", n)
	}
}

// A receiver that keeps receiving for its trips does not where more is there already: the trip would wait for it.
func TestBurstOfOneWhoAsksAlone(t *testing.T) {
	b := new(patient)
	s := start(t, func(o *session.Options, _ *Options) {
		b.Backend = o.Backend
		o.Backend = b
	})
	x := s.says(t, opening)
	x.answer()
	for i := range 500 {
		x.say(fmt.Sprintf(`{"requestId":"a%d","acquire":{"resource":"r"}}`+"\n", i))
		id := x.answer().GetGranted().GetLockId()
		x.say(fmt.Sprintf(`{"requestId":"r%d","release":{"lockId":%q}}`+"\n", i, id))
		x.answer()
	}
	if n := b.waited.Load(); n > 0 {
		t.Errorf("%d have waited for others, and none were there", n)
	}
	taken := make(chan bool)
	go func() { // where nobody receives, only time helps, and this does not hear of it
		s.server.turns.mu.Lock()
		taken <- true
		<-taken
		s.server.turns.mu.Unlock()
	}()
	<-taken
	x.say(`{"requestId":"1","acquire":{"resource":"r"}}` + "\n" + `{"requestId":"2","acquire":{"resource":"s"}}` + "\n")
	x.answer()
	x.answer()
	taken <- true
	if n := b.waited.Load(); n != 1 {
		t.Errorf("%d have waited, want the first", n)
	}
}
