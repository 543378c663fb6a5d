package queue

import (
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type entry = Entry[int]

// stand is a queue with entries by short names.
type stand struct {
	Queue[int]
	all map[string]*entry
}

func (s *stand) put(name string, r Room) *entry {
	if s.all == nil {
		s.all = map[string]*entry{}
	}
	e := &entry{ID: lock.HoldID(name)}
	s.all[name] = e
	s.Put(e, r)
	return e
}

// end takes one out, grants what can be granted, and gives whom.
func (s *stand) end(name string) []string {
	s.Remove(s.all[name])
	return s.grant()
}

func (s *stand) grant() (granted []string) {
	for e := s.Next(); e != nil; e = s.Next() {
		granted = append(granted, string(e.ID))
	}
	return granted
}

func is(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: granted %v, want %v", what, got, want)
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	var s stand
	if !s.put("w1", One).Held() || s.put("r1", Unlimited).Held() || s.put("r2", Unlimited).Held() || s.put("w2", One).Held() {
		t.Fatal("not the first alone holds")
	}
	if s.put("r3", Unlimited).Held() || s.Free(Unlimited) {
		t.Error("a reader passes a writer that waits")
	}
	is(t, "the writer ends", s.end("w1"), "r1", "r2")
	if s.put("r4", Unlimited).Held() {
		t.Error("a reader joins readers past a writer that waits")
	}
	is(t, "one reader ends", s.end("r1"))
	is(t, "a writer that waits is forced out", s.end("w2"), "r3", "r4")
	is(t, "others end", append(s.end("r2"), s.end("r3")...))
	s.put("w3", One)
	is(t, "the last reader ends", s.end("r4"), "w3")
	is(t, "the last ends", s.end("w3"))
	if !s.Empty() {
		t.Error("not empty")
	}
}

func TestWaitGrantsNothing(t *testing.T) {
	var s stand
	two := RoomOf(lock.Permits(2))
	e := &entry{ID: "p1"}
	s.Wait(e, two)
	if e.Held() || s.Position(e) != 1 || s.put("p2", two).Held() || s.Free(two) {
		t.Fatal("a request is granted that Next was not asked for, or passes one")
	}
	s.put("p3", two)
	is(t, "asked for", s.grant(), "p1", "p2")
	if e.Slot() != 0 || s.all["p2"].Slot() != 1 {
		t.Errorf("slots %d and %d", e.Slot(), s.all["p2"].Slot())
	}
}

func TestDowngradeLetsReadersIn(t *testing.T) {
	var s stand
	w := s.put("w", One)
	s.put("r1", Unlimited)
	s.put("w2", One)
	s.put("r2", Unlimited)
	s.Downgrade(s.all["w2"]) // waits: stays what it is
	s.Downgrade(w)
	is(t, "downgrade", s.grant(), "r1")
	if w.Room() != Unlimited || s.all["w2"].Room() != One {
		t.Errorf("rooms: %d, %d", w.Room(), s.all["w2"].Room())
	}
	s.Downgrade(w)
	is(t, "a reader ends", s.end("r1"))
	is(t, "the other ends", s.end("w"), "w2")
}

func permits(n int) Room { return RoomOf(lock.Permits(n)) }

func TestPermits(t *testing.T) {
	var s stand
	three := permits(3)
	for i := range 3 {
		if e := s.put(fmt.Sprint(i), three); !e.Held() || e.Slot() != i {
			t.Errorf("permit %d: slot %d", i, e.Slot())
		}
	}
	if s.put("3", three).Held() || s.put("w", One).Held() || s.put("4", three).Held() {
		t.Error("more than 3 hold")
	}
	if !s.Clashes(permits(4)) || s.Clashes(three) || s.Clashes(One) || s.Clashes(Unlimited) {
		t.Error("Clashes")
	}
	is(t, "one ends", s.end("1"), "3")
	if e := s.all["3"]; e.Slot() != 1 {
		t.Errorf("slot %d, want that of the one before", e.Slot())
	}
	is(t, "two end", append(s.end("0"), s.end("2")...))
	is(t, "the last ends", s.end("3"), "w")
	if s.Clashes(permits(4)) {
		t.Error("who waits fixes the number of permits")
	}
	s.put("other", permits(4))
	is(t, "the writer ends", s.end("w"), "4")
	if s.all["4"].Slot() != 0 {
		t.Error("numbers do not begin at 0 again")
	}
	is(t, "the permit ends", s.end("4"), "other")
	is(t, "the other permit ends", s.end("other"))
}

func TestOnePermitIsNotExclusive(t *testing.T) {
	var s stand
	s.put("a", permits(1))
	if s.put("b", permits(1)).Held() || s.all["a"].Room().Mode() == lock.Exclusive {
		t.Error("one permit")
	}
	s.Downgrade(s.all["a"])
	if s.all["a"].Room() != permits(1) {
		t.Error("a permit was downgraded")
	}
	is(t, "it ends", s.end("a"), "b")
}

// TestEverySlot takes all slots, and gives some back in another order.
func TestEverySlot(t *testing.T) {
	var s stand
	all := permits(lock.MaxPermits)
	for i := range lock.MaxPermits {
		if e := s.put(fmt.Sprint(i), all); !e.Held() || e.Slot() != i {
			t.Fatalf("permit %d: slot %d", i, e.Slot())
		}
	}
	if s.put("more", all).Held() {
		t.Error("more than there are")
	}
	is(t, "the last ends", s.end(fmt.Sprint(lock.MaxPermits-1)), "more")
	if got := s.all["more"].Slot(); got != lock.MaxPermits-1 {
		t.Errorf("slot %d", got)
	}
	for _, i := range []int{700, 64, 63} {
		s.end(fmt.Sprint(i))
	}
	for _, want := range []int{63, 64, 700} {
		if e := s.put(fmt.Sprint("again", want), all); e.Slot() != want {
			t.Errorf("slot %d, want the lowest that is free, %d", e.Slot(), want)
		}
	}
}

// TestPermitsThatAreThere puts in holds with their slots.
func TestPermitsThatAreThere(t *testing.T) {
	var q Queue[int]
	for id, slot := range map[lock.HoldID]int{"a": 2, "b": 0} {
		q.PutPermit(&entry{ID: id}, permits(4), slot)
	}
	for _, want := range []int{1, 3} {
		e := &entry{ID: lock.HoldID(fmt.Sprint(want))}
		q.Put(e, permits(4))
		if !e.Held() || e.Slot() != want {
			t.Errorf("slot %d, want %d", e.Slot(), want)
		}
	}
	if q.Free(permits(4)) {
		t.Error("more than 4")
	}
}

// TestRename: an entry is found by its new id alone, among few and many.
func TestRename(t *testing.T) {
	var q Queue[int]
	for i := range 2 * few {
		e := &entry{ID: lock.HoldID(fmt.Sprint("old", i))}
		q.Put(e, Unlimited)
		q.Rename(e, lock.HoldID(fmt.Sprint("new", i)))
		if q.Find(lock.HoldID(fmt.Sprint("old", i))) != nil || q.Find(lock.HoldID(fmt.Sprint("new", i))) != e || !e.Held() {
			t.Errorf("after %d: %+v", i, e)
		}
	}
}

func TestRemoveTwice(t *testing.T) {
	var s stand
	s.put("a", One)
	s.put("b", Unlimited)
	is(t, "once", s.end("a"), "b")
	is(t, "twice", s.end("a"))
	if h, w := s.Len(); h != 1 || w != 0 {
		t.Errorf("%d hold, %d wait", h, w)
	}
}

func TestModes(t *testing.T) {
	for m, r := range map[lock.Mode]Room{lock.Exclusive: One, lock.Shared: Unlimited, lock.Permits(7): permits(7)} {
		if RoomOf(m) != r || r.Mode() != m {
			t.Errorf("%s: %d", m, RoomOf(m))
		}
	}
}

// model is the same rules in a naive way.
type model struct {
	holders, waiters []*entry
	rooms            map[*entry]Room
}

func (m *model) admits(r Room) bool {
	for _, h := range m.holders {
		if m.rooms[h] != r {
			return false
		}
	}
	return len(m.holders) < r.size()
}

func (m *model) next() *entry {
	if len(m.waiters) == 0 || !m.admits(m.rooms[m.waiters[0]]) {
		return nil
	}
	e := m.waiters[0]
	m.waiters = m.waiters[1:]
	m.holders = append(m.holders, e)
	return e
}

func (m *model) remove(e *entry) {
	same := func(o *entry) bool { return o == e }
	m.holders = slices.DeleteFunc(m.holders, same)
	m.waiters = slices.DeleteFunc(slices.Clone(m.waiters), same)
}

// FuzzAgainstModel does what the bytes say with a queue and with the model.
func FuzzAgainstModel(f *testing.F) {
	f.Add([]byte{0, 1, 0, 2, 1, 3, 2, 0, 3, 0})
	f.Add([]byte("a resource that many want, and few have; and some who leave the line"))
	f.Add(slices.Repeat([]byte{0, 0, 0, 1, 0, 2, 2, 200, 0, 1}, 40))
	f.Add(append(slices.Repeat([]byte{0, 0}, 120), slices.Repeat([]byte{2, 77, 3, 5}, 120)...))
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 1000 { // long enough for everything, and quick
			return
		}
		var q Queue[int]
		m := &model{rooms: map[*entry]Room{}}
		for i := 0; i+1 < len(ops); i += 2 {
			all := append(slices.Clone(m.holders), m.waiters...)
			arg := int(ops[i+1])
			switch ops[i] % 4 {
			case 0, 1: // somebody comes
				room := []Room{One, Unlimited, permits(2), permits(3)}[arg%4]
				clashes := room.permits() && slices.ContainsFunc(m.holders, func(e *entry) bool { return m.rooms[e].permits() && m.rooms[e] != room })
				if q.Clashes(room) != clashes {
					t.Fatalf("Clashes(%d): %v", room, !clashes)
				}
				e := &entry{ID: lock.HoldID(fmt.Sprint(i))}
				m.rooms[e] = room
				free := len(m.waiters) == 0 && m.admits(room)
				if q.Free(room) != free {
					t.Fatalf("Free(%d): %v", room, !free)
				}
				q.Put(e, room)
				if free {
					m.holders = append(m.holders, e)
				} else {
					m.waiters = append(m.waiters, e)
				}
			case 2: // somebody leaves
				if len(all) > 0 {
					e := all[arg%len(all)]
					q.Remove(e)
					m.remove(e)
				}
			case 3:
				if len(all) > 0 {
					e := all[arg%len(all)]
					q.Downgrade(e)
					if m.rooms[e] == One && slices.Contains(m.holders, e) {
						m.rooms[e] = Unlimited
					}
				}
			}
			for n := arg % 3; n != 0; n-- { // a bounded step: perhaps not all that can be granted
				got, want := q.Next(), m.next()
				if got != want {
					t.Fatalf("Next: %+v, want %+v", got, want)
				}
			}
			same(t, &q, m)
		}
	})
}

func same(t *testing.T, q *Queue[int], m *model) {
	t.Helper()
	names := func(es []*entry) (all []lock.HoldID) {
		for _, e := range es {
			all = append(all, e.ID)
		}
		return all
	}
	if got := slices.Collect(q.Holders()); !slices.Equal(got, m.holders) {
		t.Fatalf("holders %v, want %v", names(got), names(m.holders))
	}
	if got := slices.Collect(q.Waiters()); !slices.Equal(got, m.waiters) {
		t.Fatalf("waiters %v, want %v", names(got), names(m.waiters))
	}
	if h, w := q.Len(); h != len(m.holders) || w != len(m.waiters) {
		t.Fatalf("Len: %d, %d", h, w)
	}
	used := map[int]bool{}
	for _, e := range m.holders {
		if !e.Held() || q.Find(e.ID) != e || q.Position(e) != 0 || e.Room() != m.rooms[e] {
			t.Fatalf("a hold: %+v, found %+v", e, q.Find(e.ID))
		}
		if e.Room().permits() && (used[e.Slot()] || e.Slot() < 0 || e.Slot() >= e.Room().size()) {
			t.Fatalf("slot %d of %d", e.Slot(), e.Room())
		}
		used[e.Slot()] = true
	}
	for i, e := range m.waiters {
		if !e.Waiting() || q.Find(e.ID) != e || q.Position(e) != i+1 {
			t.Fatalf("waiter %d: %+v, position %d, found %+v", i+1, e, q.Position(e), q.Find(e.ID))
		}
	}
	if q.Find("nobody") != nil || q.Empty() != (len(m.holders)+len(m.waiters) == 0) {
		t.Fatal("Find, or Empty")
	}
}

// BenchmarkMany is a change with 10,000 readers and 10,000 waiters.
func BenchmarkMany(b *testing.B) {
	var q Queue[int]
	const n = 10_000
	var waiters []*entry
	for i := range n {
		q.Put(&entry{ID: lock.HoldID(fmt.Sprint("r", i))}, Unlimited)
	}
	for i := range n {
		e := &entry{ID: lock.HoldID(fmt.Sprint("w", i))}
		waiters = append(waiters, e)
		q.Put(e, One)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e := q.Find(waiters[i*7919%n].ID)
		if q.Position(e) == 0 || q.Next() != nil {
			b.Fatal("not in the queue")
		}
		q.Remove(e)
		q.Put(e, One)
	}
}
