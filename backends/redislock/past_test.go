package redislock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Whoever saw the mark change counts from then; who finds the first mark goes on from what
// others have counted.
func TestPast(t *testing.T) {
	const grace, now = 10 * time.Second, time.Hour
	first, back := &presence{}, &presence{}
	for _, c := range []struct {
		name  string
		marks []string
		by    *presence // the last of them
		age   time.Duration
		want  time.Duration
	}{
		{"a first mark", []string{"a"}, first, 0, grace},
		{"a first mark that is old", []string{"a"}, first, 4 * time.Second, 6 * time.Second},
		{"the same mark again", []string{"a", "a"}, first, 4 * time.Second, 6 * time.Second},
		{"the same mark after another server", []string{"a", "a"}, back, time.Hour, grace},
		{"another mark that claims to be old", []string{"a", "b"}, first, time.Hour, grace},
		{"the mark before that one", []string{"a", "b", "a"}, first, time.Hour, grace},
	} {
		var p past
		for i, m := range c.marks {
			by := first
			if i == len(c.marks)-1 {
				by = c.by
			}
			p.saw(seen{mark: m, by: by, age: c.age, clock: -1, sent: now}, now)
		}
		if left, _ := p.left(grace, now); left != c.want {
			t.Errorf("%s: %s are left, want %s", c.name, left, c.want)
		}
	}
}

// The store is told once in a grace that it is over, until it knows.
func TestPastIsTold(t *testing.T) {
	const grace, now = 10 * time.Second, time.Hour
	var p past
	by := &presence{}
	tell := func(at time.Duration, want bool) {
		t.Helper()
		if got := p.untold(grace, now+at); got != want {
			t.Errorf("after %s: %v, want %v", at, got, want)
		}
	}
	tell(0, false) // no mark
	saw := func(mark string, age, at time.Duration) {
		p.saw(seen{mark: mark, by: by, age: age, clock: -1, sent: at}, at)
	}
	saw("a", 4*time.Second, now)
	tell(6*time.Second-1, false)
	tell(10*time.Second, true)
	if mark, age, doubt := p.counted(now + 10*time.Second); doubt || mark != "a" || age != 14*time.Second {
		t.Errorf("counted %s for %q", age, mark)
	}
	tell(20*time.Second-1, false) // it is on its way
	tell(20*time.Second, true)
	saw("a", grace, now+21*time.Second)
	tell(30*time.Second-1, false)
	tell(30*time.Second, true) // others may have a longer grace
	saw("a", 34*time.Second, now+31*time.Second)
	tell(64*time.Second-1, false)
	tell(64*time.Second, true)
	saw("a", lock.MaxTTL-1, now+time.Hour)
	tell(time.Hour, true)
	saw("a", lock.MaxTTL, now+time.Hour)
	tell(24*time.Hour, false) // no grace is longer
	saw("b", 0, now+24*time.Hour)
	tell(24*time.Hour+grace-1, false)
	tell(24*time.Hour+grace, true)
	saw("c", lock.MaxTTL, now+25*time.Hour) // all the same it counts itself, and others know
	if left, _ := p.left(grace, now+25*time.Hour); left != grace {
		t.Errorf("%s are left of the grace of a mark that has changed", left)
	}
	tell(26*time.Hour, false)
}

// A mark is in doubt that stood there when another server still answered, and one that came after that is not: there
// was a failover, and whoever comes late does not have all others wait again.
func TestPastDoubts(t *testing.T) {
	const start = time.Hour
	at := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	type look struct {
		mark           string
		age, at, clock float64 // seconds
	}
	for _, c := range []struct {
		name  string
		looks []look
		want  bool
	}{
		{"a first mark", []look{{"a", 3600, 0, -1}}, false},
		{"the same mark", []look{{"a", 1, 0, -1}, {"a", 3600, 2, -1}}, false},
		{"an old server", []look{{"a", 0, 0, -1}, {"b", 0, 100, -1}, {"a", 12, 105, -1}}, true},
		{"an old server that was never seen", []look{{"a", 0, 100, -1}, {"b", 12, 105, -1}}, true},
		{"a heartbeat does not say how old it is", []look{{"a", 0, 100, -1}, {"b", 0, 105, -1}, {"b", 12, 105.1, -1}}, true},
		{"for as long as a lease can live", []look{{"a", 0, 100, -1}, {"b", 10, 109, -1}}, true},
		{"clocks of different speed", []look{{"a", 0, 0, -1}, {"b", 86410, 86400, -1}}, false},
		{"the last answer counts", []look{{"a", 0, 100, -1}, {"a", 0, 108, -1}, {"b", 11, 111, -1}}, true},
		{"a failover", []look{{"a", 0, 100, -1}, {"b", 4, 105, -1}}, false},
		{"somebody comes late after it", []look{{"a", 0, 100, -1}, {"b", 20, 125, -1}}, false},
		{"it is told later that it is old", []look{{"a", 0, 100, -1}, {"b", 4, 105, -1}, {"b", 3600, 106, -1}}, false},
		{"it was replaced", []look{{"a", 0, 100, -1}, {"b", 12, 105, -1}, {"c", 0, 105.1, -1}, {"c", 1, 106.1, -1}}, false},
		{"a young server whose age nobody has told", []look{{"a", 0, 100, -1}, {"b", 0, 105, -1}, {"b", 0, 105.1, 7}}, true},
		{"whose age was told once", []look{{"a", 0, 100, -1}, {"b", 1, 105, 7}}, true},
		{"whose age was told for as long as that matters", []look{{"a", 0, 0, -1}, {"b", 640, 900, 3600}}, true},
		{"somebody comes late after a failover, by the server's clock", []look{{"a", 0, 100, -1}, {"b", 20, 125, 24}}, false},
		{"the server's clock was set back", []look{{"a", 0, 100, -1}, {"b", 12, 105, -3600}}, true},
		{"who comes first, and then the server's clock is set", []look{{"a", 0, 100, -1}, {"b", 0, 105, 0}, {"b", 0, 106, 3600}}, false},
	} {
		var p past
		for _, l := range c.looks {
			sent := start + at(l.at)
			p.saw(seen{mark: l.mark, by: &presence{}, age: at(l.age), clock: at(l.clock), sent: sent}, sent)
		}
		if p.doubted() != c.want {
			t.Errorf("%s: in doubt %v, want %v", c.name, p.doubted(), c.want)
		}
	}
}

// The road led to another master and back, of which nothing was learned there. So the mark stood there while that one was
// at work. Where it was a replica, there was nothing to be granted.
func TestPastDoubtsAfterAnotherMaster(t *testing.T) {
	for _, c := range []struct {
		found []string // run id and role, "writes": it has written something
		want  bool
	}{
		{[]string{"1 master", "2 master", "1 master"}, true},
		{[]string{"1 master", "2 slave", "1 master"}, false},
		{[]string{"1 master", "2 slave", "2 master", "1 master"}, true},
		{[]string{"1 master", "2 slave", "writes", "1 master"}, true},
		{[]string{"1 master", "1 master", "writes"}, false},
		{[]string{"1 slave", "2 slave", "1 slave", "1 master"}, false},
		{[]string{"1 master"}, false},
	} {
		var p past
		r, other := newRoad(nil), newRoad(nil)
		look := func(r *road) { p.saw(seen{mark: "a", by: r.current.Load(), clock: -1, sent: time.Hour}, time.Hour) }
		for i, what := range c.found {
			for _, r := range []*road{r, other} {
				run, role, found := strings.Cut(what, " ")
				if !found {
					r.current.Load().writes()
				} else if err := r.found(nil, map[string]string{"run_id": run, "role": role}, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			if i == 0 {
				look(r)
			}
		}
		look(r)
		if p.doubted() != c.want {
			t.Errorf("%v: in doubt %v, want %v", c.found, p.doubted(), c.want)
		}
		var same past // by another address
		same.saw(seen{mark: "a", by: &presence{road: r}, clock: -1}, time.Hour)
		same.saw(seen{mark: "a", by: other.current.Load(), clock: -1}, time.Hour)
		if same.doubted() {
			t.Errorf("%v: in doubt by another road", c.found)
		}
	}
}

// Who starts just before others tell how old the mark is goes on from there, too. Who has seen another one does not.
func TestPastIsToldLater(t *testing.T) {
	const grace, start, second = 10 * time.Minute, time.Hour, time.Second
	by := &presence{}
	var p past
	for i, c := range []struct {
		mark          string
		age, at, want time.Duration
	}{
		{"a", 0, 0, grace},
		{"a", 9 * time.Minute, second, time.Minute},
		{"a", time.Minute, 2 * second, time.Minute - second},
		{"b", 0, 3 * second, grace},
		{"b", 9 * time.Minute, 4 * second, grace - second},
	} {
		now := start + c.at
		p.saw(seen{mark: c.mark, stamp: int64(i), by: by, age: c.age, clock: -1, sent: now}, now)
		if left, _ := p.left(grace, now); left != c.want {
			t.Errorf("%d: %s are left, want %s", i, left, c.want)
		}
	}
}

// An answer of before the mark was replaced that comes late changes nothing: the grace runs on.
func TestPastHearsALateAnswer(t *testing.T) {
	const grace, start, second = 10 * time.Second, time.Hour, time.Second
	by := &presence{}
	p := past{}
	saw := func(mark string, stamp int64, sent, now time.Duration) {
		p.saw(seen{mark: mark, stamp: stamp, by: by, clock: -1, sent: start + sent}, start+now)
	}
	want := func(at time.Duration, mark string, left time.Duration) {
		t.Helper()
		is, _, _ := p.counted(start + at)
		if got, _ := p.left(grace, start+at); is != mark || got != left {
			t.Errorf("after %s: %q with %s left, want %q with %s", at, is, got, mark, left)
		}
	}
	saw("a", 1, 0, 0)
	saw("b", 7, 7*second, 8*second) // replaced
	saw("a", 1, 6*second, 9*second)
	want(9*second, "b", 9*second)
	saw("b", 7, 11*second, 12*second)
	want(12*second, "b", 6*second)
	saw("c", 3, 13*second, 14*second) // the data was lost, and the clock was set back
	want(14*second, "c", grace)
}

// A process that was promoted may have lost what it knew; one whose last replica is
// long gone has not.
func TestSameServer(t *testing.T) {
	p := &presence{run: "1"}
	was := &server{by: p, run: "1", term: "a"}
	for _, c := range []struct {
		is   *server
		want bool
	}{
		{&server{by: p, run: "1", term: "a"}, true},
		{&server{by: p, run: "1", term: "0"}, true},
		{&server{by: p, run: "1", term: "b"}, false},
		{&server{by: p, run: "2", term: "a"}, false},
		{&server{by: &presence{run: "1"}, run: "1", term: "a"}, false},
	} {
		if got := c.is.same(was); got != c.want {
			t.Errorf("%+v after %+v: same %v, want %v", c.is, was, got, c.want)
		}
	}
	if was.same(nil) {
		t.Error("the same as nobody")
	}
}

// A bucket in which a lease has had nothing for a TTL costs no heartbeats any more.
// Issue 9, 3.4.
func TestIdleBucketIsClosed(t *testing.T) { again(t, testIdleBucketIsClosed) }

func testIdleBucketIsClosed(t testing.TB) {
	s := testengine.Shared(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, 3*time.Second) // a busy machine may stand still for a second or two
	known := func(r lock.Resource) bool {
		_, err := b.client.ZScore(t.Context(), b.keys.buckets[b.keys.bucketOf(r)].leases, string(l.ID())).Result()
		return err == nil
	}
	ctx := context.Background()
	kept := hold(t, l, "kept")
	for range 3 {
		g := hold(t, l, "idle")
		if !known("idle") {
			t.Fatal("a lease has a hold in a bucket that does not know it")
		}
		if err := l.Release(ctx, "idle", g.ID); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the idle bucket is closed", func() error {
			if err := beat(ctx, l); errors.Is(err, lock.ErrLeaseLost) {
				t.Fatal(err)
			} else if err != nil {
				return err
			}
			if known("idle") {
				return errors.New("it is open")
			}
			return nil
		})
	}
	if !known("kept") {
		t.Error("a bucket with a hold was closed")
	}
	if err := l.Release(ctx, "kept", kept.ID); err != nil {
		t.Error(err)
	}
}
