package sqllock

import (
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// found is a state as a transaction finds it: who has the row, shared holds, and the
// front of the queue.
func found(x string, holds []string, rest bool, waits ...lock.Mode) *state {
	s := newState()
	s.now = 1000
	s.leases["l"] = notEnded
	if x != "" {
		s.x = s.put(x, member{lease: "l", fence: 10, place: onRow}, queue.One)
		s.xWas = s.x
	}
	for _, h := range holds {
		s.put(h, member{lease: "l", fence: 11, place: inHolds}, queue.Unlimited)
	}
	var ahead []Row
	for i, m := range waits {
		ahead = append(ahead, Row{int64(i), []byte{byte('a' + i)}, []byte("l"), int64(m), int64(notEnded), int64(0), int64(0)})
	}
	step := len(ahead)
	if rest {
		step--
	}
	s.addWaiters(ahead, nil, step)
	s.settleFront()
	return s
}

// Who is in front of a new waiter is told, where that is of another lease and has a cohort.
func TestWhoStandsBehind(t *testing.T) {
	ask := func(s *state, lease, id string, several bool) []contended {
		s.leases[lease], s.contended = notEnded, nil
		s.apply(&op{kind: opAsk, id: id, lease: lease, mode: lock.Exclusive, several: several})
		return s.contended
	}
	s := found("x", nil, false)
	s.x.Value.several = true
	for _, step := range []struct {
		lease, id string
		several   bool
		want      []contended
	}{
		{"l", "own", false, nil}, // the hold is of the same lease
		{"m", "w1", true, nil},   // in front of it is one without a cohort
		{"m", "w2", true, nil},
		{"l", "w3", false, []contended{{"m", "w2"}}},
		{"m", "w4", true, nil},
	} {
		if got := ask(s, step.lease, step.id, step.several); !slices.Equal(got, step.want) {
			t.Errorf("%s: told %v, want %v", step.id, got, step.want)
		}
	}
	s = found("x", nil, false)
	s.x.Value.several = true
	if got := ask(s, "m", "w", true); !slices.Equal(got, []contended{{"l", "x"}}) || s.crowdOf != "" {
		t.Errorf("behind a holder: told %v, and %q", got, s.crowdOf)
	}
	s = found("", []string{"h"}, false)
	if got := ask(s, "m", "w", true); len(got) != 0 || s.crowdOf != "m" {
		t.Errorf("behind readers: told %v, and %q", got, s.crowdOf)
	}
	s.readers([]Row{{[]byte("own"), []byte("m")}, {[]byte("h"), []byte("l")}})
	if !slices.Equal(s.contended, []contended{{"l", "h"}}) {
		t.Errorf("readers: told %v", s.contended)
	}
	s = found("x", nil, true, lock.Exclusive, lock.Exclusive)
	for e := range s.q.Waiters() {
		e.Value.several = true
	}
	if got := ask(s, "m", "w", true); len(got) != 0 { // it is not known who is last
		t.Errorf("behind a long queue: told %v", got)
	}
}

func remove(s *state, id string) *op {
	o := &op{kind: opRemove, id: id, lease: "l"}
	s.apply(o)
	return o
}

func granted(s *state) (ids []string) {
	for _, e := range s.granted {
		ids = append(ids, string(e.ID))
	}
	return ids
}

func TestReleaseGrantsFront(t *testing.T) {
	s := found("x", nil, false, lock.Shared, lock.Shared, lock.Exclusive, lock.Shared)
	if o := remove(s, "x"); !o.found || o.err != nil {
		t.Fatalf("release: %+v", o)
	}
	if got := granted(s); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("granted %v, want the readers before the writer", got)
	}
	if s.more || !s.crowded() || s.x != nil {
		t.Errorf("more %t, crowded %t, x %v", s.more, s.crowded(), s.x)
	}
	for _, e := range s.granted {
		if e.Value.fence != 1 { // nobody has taken it exclusively: the row says 0
			t.Errorf("a reader has fence %d", e.Value.fence)
		}
	}
}

func TestWriterIsOnRow(t *testing.T) {
	s := found("x", nil, false, lock.Exclusive, lock.Exclusive)
	remove(s, "x")
	if s.x == nil || s.x.ID != "a" || s.x.Value.fence != 1000 {
		t.Fatalf("on the row: %+v", s.x)
	}
	if s.crowded() { // that somebody waits is not written to the row of a hold
		t.Error("the flag is set for who waits")
	}
	if !s.busy() {
		t.Error("nobody is in the way of the next")
	}
}

// Of a queue that was not read to its end, there may be more to grant.
func TestMore(t *testing.T) {
	s := found("x", nil, true, lock.Shared, lock.Shared, lock.Shared)
	remove(s, "x")
	if got := granted(s); !slices.Equal(got, []string{"a", "b"}) || !s.more {
		t.Errorf("granted %v, more %t", got, s.more)
	}
	s = found("x", nil, true, lock.Shared, lock.Exclusive, lock.Shared)
	remove(s, "x")
	if got := granted(s); !slices.Equal(got, []string{"a"}) || s.more {
		t.Errorf("granted %v, more %t, want the reader, and a writer that waits for it", got, s.more)
	}
}

// While a server that has taken over must not grant, requests queue, and what is
// released is granted to nobody.
func TestKept(t *testing.T) {
	s := newState()
	s.leases["l"] = notEnded
	s.x = s.put("x", member{lease: "l", fence: 10, place: onRow}, queue.One)
	s.xWas = s.x
	s.keep()
	s.settleFront()
	ask := &op{kind: opAsk, id: "a", lease: "l", mode: lock.Exclusive}
	s.apply(ask)
	remove(s, "x")
	try := &op{kind: opAsk, id: "b", lease: "l", mode: lock.Shared, try: true}
	s.apply(try)
	if !ask.queued || len(s.granted) > 0 || s.x != nil || !errors.Is(try.err, errKept) {
		t.Errorf("asked %+v, granted %v, tried %v", ask, granted(s), try.err)
	}
	s.notes["gone"] = note{lease: "l"}
	for id, want := range map[string]error{"unknown": errKept, "gone": lock.ErrNotHolder} { // the server may lack a hold, and knows what it knows
		force := &op{kind: opForce, id: id}
		if s.apply(force); !errors.Is(force.err, want) {
			t.Errorf("forced %s: %v, want %v", id, force.err, want)
		}
	}
}

// A request that was given up is not granted. Who asks again for a hold whose release is
// forced has it, and its grace: an answer was lost, or a copy of the request comes late,
// when the app knows its grace already.
func TestNotes(t *testing.T) {
	s := found("", nil, false)
	s.notes["a"] = note{lease: "l"}
	ask := &op{kind: opAsk, id: "a", lease: "l", mode: lock.Exclusive}
	s.apply(ask)
	if !errors.Is(ask.err, lock.ErrNotHolder) || s.x != nil {
		t.Errorf("a late copy: %v, %v", ask.err, s.x)
	}
	s = found("x", nil, false, lock.Exclusive)
	s.notes["x"] = note{lease: "l", forced: true, grace: 5, known: -1}
	again := &op{kind: opAsk, id: "x", lease: "l", mode: lock.Exclusive}
	s.apply(again)
	if again.err != nil || again.fence != 10 || s.x == nil || s.x.ID != "x" {
		t.Errorf("a forced hold is asked for again: %v, fence %d, then on the row %v", again.err, again.fence, s.x)
	}
	end := &op{kind: opEnd, id: "x"}
	s.apply(end)
	if s.x == nil || s.x.ID != "x" {
		t.Error("a grace that nobody has acknowledged was over")
	}
	s.notes["x"] = note{lease: "l", forced: true, grace: 5, known: 5}
	s.apply(end)
	if s.x == nil || s.x.ID != "a" {
		t.Error("a hold whose grace is over is still there")
	}
}

func TestListed(t *testing.T) {
	st := listed("SELECT ?k FROM t WHERE n=?n AND id IN (?ids) AND l IN (?leases)").with([]byte("n"), [][]byte{{1}, {2}}, [][]byte{{3}}, 7)
	if st.SQL != "SELECT ? FROM t WHERE n=? AND id IN (?,?) AND l IN (?)" || len(st.Args) != 5 || st.Args[0] != int64(7) {
		t.Errorf("got %q with %v", st.SQL, st.Args)
	}
	if got := Numbered("a=? AND b=?"); got != "a=$1 AND b=$2" {
		t.Errorf("got %q", got)
	}
}

// A hold that keeps others out at least so long outlasts its release and its lease, until its time is over or
// its release is forced.
func TestLeast(t *testing.T) {
	const id = "x"
	remove := &op{kind: opRemove, id: id, lease: "l"}
	for name, c := range map[string]struct {
		ends   int64
		ops    []*op
		blocks bool
	}{
		"released":                    {1001, []*op{remove}, true},
		"released when it is over":    {1000, []*op{remove}, false},
		"of a lease that is over":     {1001, []*op{{kind: opSweep, id: id, of: "l"}}, true},
		"forced":                      {1001, []*op{{kind: opForce, id: id}}, false},
		"released while it is forced": {1001, []*op{{kind: opForce, id: id, grace: 1}, remove}, false},
		"kept, and forced":            {1001, []*op{remove, {kind: opForce, id: id, grace: 1}}, false},
	} {
		s := found(id, nil, false)
		s.leases["m"] = notEnded
		s.addLeasts([]Row{{[]byte(id), int64(lock.Exclusive), int64(10), c.ends, nil}})
		for _, o := range c.ops {
			if o.kind == opSweep {
				s.leases["l"] = expired
			}
			if s.apply(o); o.err != nil {
				t.Errorf("%s: %v", name, o.err)
			}
		}
		again := &op{kind: opAsk, id: id, lease: "l", mode: lock.Exclusive}
		if s.isLeast(id) && s.lives("l") {
			if s.apply(again); !errors.Is(again.err, lock.ErrNotHolder) {
				t.Errorf("%s: asked for again: %v", name, again.err)
			}
		}
		next := &op{kind: opAsk, id: "next", lease: "m", mode: lock.Exclusive}
		if s.apply(next); next.err != nil || next.queued != c.blocks || s.crowded() != c.blocks {
			t.Errorf("%s: the next waits: %t, want %t; %v", name, next.queued, c.blocks, next.err)
		}
		if gone := slices.Contains(s.delLeasts, id); gone == c.blocks {
			t.Errorf("%s: its row is deleted: %t", name, gone)
		}
	}
}

// takenOver is a state on a server that grants since another moment than those of the fences that it knows.
func takenOver(x string, holds ...string) *state {
	s := found(x, holds, false)
	s.fence, s.since = 10, 900
	return s
}

// A server that has taken over may lack exclusive grants. What is granted there comes after them.
func TestFencesOfAServerThatHasTakenOver(t *testing.T) {
	fence := func(s *state, id string, m lock.Mode) int64 {
		t.Helper()
		o := &op{kind: opAsk, id: id, lease: "l", mode: m}
		apply(t, s, o)
		return o.fence
	}
	for name, s := range map[string]*state{"nobody holds": takenOver(""), "others share": takenOver("", "h")} {
		if got := fence(s, "new", lock.Shared); got != 1001 || s.fence != 1000 || !s.raised {
			t.Errorf("%s: a reader has fence %d, and the row %d (%t)", name, got, s.fence, s.raised)
		}
		if got := fence(s, "next", lock.Shared); got != 1001 || s.fence != 1000 {
			t.Errorf("%s: the next reader has fence %d, and the row %d", name, got, s.fence)
		}
	}
	s := takenOver("x")
	s.q.Downgrade(s.x)
	if got := fence(s, "new", lock.Shared); got != 901 || s.raised || s.x.Value.fence != 10 {
		t.Errorf("beside a hold that was downgraded: a reader has fence %d, raised %t; it has %d itself", got, s.raised, s.x.Value.fence)
	}
	s = takenOver("")
	if s.now = 800; fence(s, "new", lock.Exclusive) != 902 { // its clock was set back
		t.Errorf("an exclusive grant has fence %d", s.fence)
	}
}

// What a server before has granted, and taken away since, may be there again. Whoever asks for it gets another fence, once.
func TestFenceOfAGrantOfTheServerBefore(t *testing.T) {
	permits := newState()
	const base = wholeFence / lock.FenceRange // the whole fence is told from its number since then
	permits.now, permits.since, permits.fence, permits.permit = base+1000, base+900, base+10, lock.Permits(3)
	permits.leases["l"] = notEnded
	permits.addPermits([]Row{{[]byte("h"), []byte("l"), int64(lock.PermitFence(base+10, 2)), int64(10)}})
	downgraded := takenOver("h")
	downgraded.q.Downgrade(downgraded.x)
	for name, c := range map[string]struct {
		s    *state
		m    lock.Mode
		want int64
	}{
		"exclusive":  {takenOver("h"), lock.Exclusive, 1000},
		"shared":     {takenOver("", "h"), lock.Shared, 1001},
		"permit":     {permits, lock.Permits(3), int64(lock.PermitFence(base+1000, 2))},
		"downgraded": {downgraded, lock.Shared, 10}, // its app has had it
	} {
		for range 2 {
			o := &op{kind: opAsk, id: "h", lease: "l", mode: c.m}
			if apply(t, c.s, o); o.fence != c.want {
				t.Errorf("%s: fence %d, want %d", name, o.fence, c.want)
			}
		}
		if n := len(c.s.regranted); n > 1 || n == 0 && name != "downgraded" {
			t.Errorf("%s: %d are written", name, n)
		}
	}
}
