package sqllock

import (
	"errors"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

const span = 100

func detaching(id string) *op { return &op{kind: opDetach, id: id, lease: "l", key: "k", span: span} }

func attaching(is, id string, m lock.Mode) *op {
	return &op{kind: opAttach, is: is, id: id, lease: "m", key: "k", mode: m, owner: "who"}
}

func byHandle(is string, span int64) *op { return &op{kind: opHandle, id: is, key: "k", span: span} }

// apply carries requests out that all must be done.
func apply(t *testing.T, s *state, ops ...*op) {
	t.Helper()
	for _, o := range ops {
		if s.apply(o); o.err != nil {
			t.Errorf("%s: %v", o.kind, o.err)
		}
	}
}

// attached is a state with a reader that a lease has attached, and another reader.
func attached(ends int64) *state {
	s := found("", []string{"x", "other"}, false)
	s.leases["m"] = notEnded
	s.addLeasts([]Row{{[]byte("x"), int64(lock.Shared), int64(11), ends, []byte("k")}})
	return s
}

// What is detached keeps others out, and what follows in the same transaction finds it as if it had been written.
func TestDetachInOneBatch(t *testing.T) {
	s := found("x", nil, false, lock.Exclusive)
	s.leases["m"] = notEnded
	apply(t, s, detaching("x"), detaching("x"))
	if len(s.detached) != 1 || s.detached[0].ends != 1000+span || s.newKeys["x"] != "k" || len(s.granted) > 0 || s.x != nil || !s.crowded() {
		t.Errorf("detached: %+v, keys %v, granted %v, on the row %v", s.detached, s.newKeys, granted(s), s.x)
	}
	take := attaching("x", "y", lock.Exclusive)
	apply(t, s, byHandle("x", 2*span), take)
	if take.fence != 10 || take.lasts != 2*span || s.x == nil || s.x.ID != "y" || s.newKeys["y"] != "k" || len(s.newKeys) != 1 || len(s.newNotes) > 0 {
		t.Errorf("attached: %+v, on the row %v, keys %v, notes %v", take, s.x, s.newKeys, s.newNotes)
	}
	again := attaching("y", "y", lock.Exclusive)
	end := byHandle("y", 0)
	apply(t, s, again, end)
	if again.fence != 10 || end.fence != 10 || end.mode != lock.Exclusive {
		t.Errorf("asked again: %+v; ended: %+v", again, end)
	}
	if got := granted(s); !slices.Equal(got, []string{"a"}) || len(s.newKeys) > 0 || len(s.newLeasts) > 0 {
		t.Errorf("granted %v, keys %v, least %v", got, s.newKeys, s.newLeasts)
	}
	for _, id := range []string{"x", "y"} {
		if !slices.Contains(s.delLeasts, id) || !slices.Contains(s.goneKeys, id) {
			t.Errorf("%s is left: deleted are %v and %v", id, s.delLeasts, s.goneKeys)
		}
	}
	if n := s.newNotes["y"]; n.lease != "m" || !n.forced || !slices.Equal(s.told, []string{"m"}) {
		t.Errorf("who had it is told by %+v, and %v", n, s.told)
	}
}

// A hold whose time is over, and that is detached at that moment, is kept by its new row.
func TestDetachWhatWasAttached(t *testing.T) {
	s := attached(1000)
	apply(t, s, detaching("x"))
	if slices.Contains(s.delLeasts, "x") || !slices.Equal(s.goneHolds, []string{"x"}) || !s.isLeast("x") {
		t.Errorf("deleted %v and %v", s.delLeasts, s.goneHolds)
	}
}

// What is over is deleted by whichever request comes first, which may let others in: no later one finds it, whatever
// its clock says.
func TestWhatIsOverIsDeleted(t *testing.T) {
	s := found("", nil, false)
	s.addLeasts([]Row{
		{[]byte("over"), int64(lock.Exclusive), int64(11), int64(1000), []byte("k")},
		{[]byte("kept"), int64(lock.Shared), int64(11), int64(1001), []byte(nil)},
	})
	if !slices.Equal(s.delLeasts, []string{"over"}) || !slices.Equal(s.goneKeys, []string{"over"}) || s.entries["over"] != nil || !s.isLeast("kept") {
		t.Errorf("deleted %v and %v, left %v", s.delLeasts, s.goneKeys, s.entries)
	}
}

func TestAttachElsewhere(t *testing.T) {
	s := attached(1001)
	take := attaching("x", "y", lock.Shared)
	if now, later := s.lockable([]*op{take}, nil); len(now) > 0 || len(later) != 1 {
		t.Error("what an app has locked is taken from it")
	}
	if now, _ := s.lockable([]*op{take}, []Row{{[]byte("x")}}); len(now) != 1 {
		t.Error("what nobody has locked is not taken")
	}
	apply(t, s, take)
	if e := s.entries["y"]; e == nil || e.Value.lease != "m" || e.Value.fence != 11 || e.Room() != queue.Unlimited {
		t.Errorf("attached: %+v", e)
	}
	if n := s.newNotes["x"]; n.lease != "l" || !n.forced || n.grace != 0 || n.known >= 0 || !slices.Equal(s.goneHolds, []string{"x"}) {
		t.Errorf("who had it is told by %+v; deleted %v", n, s.goneHolds)
	}
}

func TestNoHandle(t *testing.T) {
	for name, c := range map[string]struct {
		ends int64
		ops  []*op
		ask  *op
		want error
	}{
		"good":           {1001, nil, attaching("x", "y", lock.Shared), nil},
		"over":           {1000, nil, attaching("x", "y", lock.Shared), lock.ErrNoHandle},
		"another mode":   {1001, nil, attaching("x", "y", lock.Exclusive), lock.ErrNoHandle},
		"of nothing":     {1001, nil, attaching("other", "y", lock.Shared), lock.ErrNoHandle},
		"extended later": {1000, nil, byHandle("x", span), lock.ErrNoHandle},
		"forced":         {1001, []*op{{kind: opForce, id: "x", grace: 1}}, byHandle("x", span), lock.ErrNoHandle},
		"given up":       {1001, []*op{{kind: opRemove, id: "y", lease: "m", unsure: true}}, attaching("x", "y", lock.Shared), lock.ErrNotHolder},
		"asked too late": {1000, nil, &op{kind: opAttach, is: "x", id: "x", lease: "l", key: "k", mode: lock.Shared}, lock.ErrNoHandle},
		"taken away":     {1001, []*op{attaching("x", "y", lock.Shared)}, &op{kind: opAttach, is: "y", id: "x", lease: "l", key: "k", mode: lock.Shared}, lock.ErrNotHolder},
		"let go of":      {1001, []*op{{kind: opRemove, id: "x", lease: "l"}}, &op{kind: opAttach, is: "x", id: "x", lease: "l", key: "k", mode: lock.Shared}, lock.ErrNotHolder},
	} {
		s := attached(c.ends)
		apply(t, s, c.ops...)
		if s.apply(c.ask); !errors.Is(c.ask.err, c.want) {
			t.Errorf("%s: got %v, want %v", name, c.ask.err, c.want)
		}
	}
	s := attached(1000)
	if s.apply(&op{kind: opAttach, is: "x", id: "x", lease: "l", key: "k", mode: lock.Shared}); s.own(&op{id: "x", lease: "l"}) == nil || len(s.goneHolds) > 0 {
		t.Errorf("a request that was carried out before, and arrives once more when the time is over, has ended it: deleted %v", s.goneHolds)
	}
	s = attached(1001)
	s.keep()
	take := attaching("x", "y", lock.Shared)
	if s.apply(take); !errors.Is(take.err, errKept) {
		t.Errorf("on a server that must not grant: %v", take.err)
	}
}

// A detach of what is to be released, or was not granted, keeps nothing.
func TestDetachKeepsNothing(t *testing.T) {
	s := found("x", nil, false, lock.Exclusive)
	apply(t, s, &op{kind: opForce, id: "x", grace: 1})
	x, waits := detaching("x"), detaching("a")
	apply(t, s, waits, x)
	if x.found || waits.found || len(s.detached)+len(s.entries) > 0 || s.crowded() {
		t.Errorf("found %t and %t, detached %v, left %v", x.found, waits.found, s.detached, s.entries)
	}
}
