package zklock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestPermitsAreHandedOn: each release lets in who came first, whichever sidecar that is, without a recheck. Where
// the queue is long, sidecars read the node before theirs, one by one.
func TestPermitsAreHandedOn(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for name, short := range map[string]int{"short": shortQueue, "long": -1} {
		subtest(t, name, func(t testing.TB) {
			testHandedOn(t, s.URL(), short)
		})
	}
}

func testHandedOn(t testing.TB, url string, short int) {
	var bs []*Backend
	var ls []*lease
	for range 3 {
		b := openAt(t, url)
		t.Cleanup(func() { _ = b.Close() })
		b.shortQueue = short
		b.recheckOf = func(time.Duration) time.Duration { return time.Hour }
		l := newLease(t, b, 40*time.Second)
		live(t, l)
		bs, ls = append(bs, b), append(ls, l)
	}
	r, two := unique(), lock.Permits(2)
	type held struct {
		l *lease
		g lock.Grant
	}
	x := hold(t, ls[2], r, lock.Exclusive)
	var waits []*wait
	for i := range 12 {
		waits = append(waits, queue(t, bs[i%3], ls[i%3], request(r, two)))
	}
	out := waits[5]
	if err := bs[0].ForceRelease(t.Context(), r, idOf(t, bs[0], r, 5), 0); err != nil { // one in the middle goes
		t.Fatal(err)
	}
	<-out.done
	if !errors.Is(out.err, lock.ErrNotHolder) {
		t.Errorf("who was forced out: %v", out.err)
	}
	release(t, ls[2], x)
	var in []held
	for i, w := range waits {
		if w == out {
			continue
		}
		if len(in) == 2 {
			for _, later := range waits[i:] {
				if later != out {
					later.pending()
				}
			}
			release(t, in[i%2].l, in[i%2].g)
			in = slices.Delete(in, i%2, i%2+1)
		}
		in = append(in, held{ls[i%3], w.granted()})
	}
	for _, h := range in {
		release(t, h.l, h.g)
	}
	empty(t, bs[0], url, r)
}

// idOf is who waits at a place in a queue.
func idOf(t testing.TB, b *Backend, r lock.Resource, i int) lock.HoldID {
	t.Helper()
	st, err := b.Get(t.Context(), r)
	if err != nil || len(st.Waiters) <= i {
		t.Fatalf("Get has %+v, %v", st, err)
	}
	return st.Waiters[i].ID
}
