package redislock

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// kept looks for holds of no lease whose time is over.
func (s *still) kept() string {
	s.t.Helper()
	return s.run(scriptKept, []string{s.k.leases, s.k.keptEnds}, 100)
}

// A hold with a time of its own outlasts its release, in the microsecond too, and who is next is told to ask again.
func TestScriptsKeepAReleasedHold(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.want(s.acquire("aa", "1", "Xm3000000"), "T")
	s.has("lock", "h1=X T T aa 0 - w|mT+3s, k=1, m=X")
	s.want(s.acquire("aa", "1", "Xm3000000"), "T") // asked again
	s.want(s.acquire("bb", "2", "X"), "[WAIT 10000]")
	s.hears()
	s.at(second)
	s.want(s.release("aa", "1"), "1")
	s.hears("bb: x 2")
	s.has("lock", "h1=X T T 0 0 - w|mT+3s, k=1, m=X")
	s.empty("aa")
	s.has("kept", "r|1=0")
	s.has("kept ends", "r|1=T+3s")
	s.has("leases", "kept=T+3s, aa=T+10s, bb=T+10s")
	s.want(s.release("aa", "1"), "0")
	s.want(s.downgrade("aa", "1"), "0")
	s.want(s.acquire("aa", "1", "Xm3000000"), "[GONE]")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 2000]")
	s.want(s.try("aa", "3", "X"), "[HELD T+1s 1 X T T 0 0 - w|mT+3s]")
	s.want(s.status("0", "-inf"), "[T+1s  [1 X T T 0 0 - w|mT+3s]  [2 X 0 T bb 0 - w]]")
	s.at(3*second - 1)
	s.want(s.kept(), "[]")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 1]")
	s.at(3 * second)
	s.want(s.acquire("bb", "2", "X"), "T+3s")
	s.has("lock", "h2=X T+3s T+3s bb 0 - w, m=X")
	s.want(s.kept(), "[r|1]")
	s.want(s.reap("0", "1"), "1")
	s.has("lock", "h2=X T+3s T+3s bb 0 - w, m=X")
	s.want(s.kept(), "[]")
	s.has("kept", "")
	s.has("kept ends", "")
	s.has("leases", "aa=T+10s, bb=T+10s")
	s.want(s.release("bb", "2"), "1")
	s.free("aa", "bb")
}

// The sidecar whose turn it is ends what is kept, and grants what waits, though nobody asks again.
func TestScriptsEndWhatIsKept(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "Sm3000000")
	s.acquire("aa", "2", "Sm5000000")
	s.acquire("aa", "3", "X")
	s.release("aa", "2")
	s.release("aa", "1")
	s.has("leases", "kept=T+3s, aa=T+10s") // the first that ends
	s.at(3 * second)
	if got := s.beat("aa"); got[len(got)-6:] != " kept]" {
		t.Errorf("a heartbeat finds nothing to do: %s", got)
	}
	s.want(s.kept(), "[r|1]")
	s.hears("aa: x 3", "aa: x 3")
	s.want(s.reap("0", "1"), "1")
	s.hears()
	s.want(s.kept(), "[]")
	s.has("leases", "kept=T+5s, aa=T+13s")
	s.at(5 * second)
	s.want(s.kept(), "[r|2]")
	s.want(s.reap("0", "2"), "1")
	s.hears("aa: g 3 T+5s")
	s.want(s.kept(), "[]")
	s.release("aa", "3")
	s.free("aa")
}

// The end of its lease does not end it, whether or not that is cleared away by then; and it does not
// bring the lease back.
func TestScriptsKeepAHoldOfTheDead(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "Xm30000000")
	s.at(5 * second)
	s.open("bb")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 25000]")
	s.at(10 * second)
	s.beat("bb")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 20000]")
	s.want(s.status("0", ""), "[T+10s  [1 X T T 0 0 - w|mT+30s]  []]")
	s.want(s.try("bb", "3", "X"), "[HELD T+10s 1 X T T 0 0 - w|mT+30s]")
	s.want(s.renew("aa"), "nil")
	s.want(s.reap("aa", "1"), "1")
	s.want(s.drop("aa", "reap"), "0")
	s.has("leases", "bb=T+20s, kept=T+30s")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 20000]")
	s.at(19 * second)
	s.beat("bb")
	s.at(28 * second)
	s.beat("bb")
	s.at(30 * second)
	s.want(s.acquire("bb", "2", "X"), "T+30s")
	s.want(s.reap("0", "1"), "1")
	s.release("bb", "2")
	s.free("aa", "bb")
}

// A forced release ends what is kept at once, and from its beginning on the time of a hold.
func TestScriptsForceWhatIsKept(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "Xm3600000000")
	s.release("aa", "1")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 3600000]")
	s.want(s.force("", "1", 60*second), "[0]")
	s.want(s.force("0", "1", 60*second), "0")
	s.want(s.acquire("bb", "2", "X"), "T+2") // its place in the queue was T+1
	s.has("kept", "")
	s.has("kept ends", "")
	s.want(s.force("0", "1", 0), "-1")
	s.release("bb", "2")

	s.acquire("aa", "3", "Xm3600000000")
	s.force("aa", "3", 60*second)
	s.want(s.release("aa", "3"), "1")
	s.has("lock", "")
	s.has("kept", "")

	s.acquire("aa", "4", "Xm3600000000")
	s.want(s.acquire("bb", "5", "X"), "[WAIT 3600000]")
	s.at(5 * second)
	s.beat("bb")
	s.at(10 * second) // the lease is over, and not cleared away
	s.want(s.force("aa", "4", 60*second), "0")
	s.want(s.kept(), "[]")
	s.has("lock", "h5=X T+10s T+10s bb 0 - w, m=X")
	s.release("bb", "5")
	s.free("aa", "bb")
}

// A permit that is kept keeps its slot, and a reader lets readers in.
func TestScriptsKeepAPermit(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "P2m3000000")
	s.release("aa", "1")
	s.want(s.acquire("aa", "2", "P2"), "T+1+1")
	s.want(s.try("aa", "3", "P3"), "[LIMIT]")
	s.want(s.acquire("aa", "4", "P2"), "[WAIT 3000]")
	s.at(3 * second)
	s.want(s.acquire("aa", "4", "P2"), "T+3s+0")
	s.want(s.reap("0", "1"), "1")
	s.release("aa", "2")
	s.release("aa", "4")
	s.free("aa")
}

// Many holds that are kept are listed, though no lease has them, and cleared away when their time is over.
func TestManyAreKept(t *testing.T) {
	const many = 2*clearPage + 1
	b, l := sidecar(t, testengine.New(t, testengine.Redis).URL()+noGrace, 30*time.Second)
	swallow(l)
	for i := range many {
		q := exclusive(lock.Resource(fmt.Sprintf("kept/%04d", i)))
		q.MinHold = 30 * time.Second
		if i%2 == 0 {
			q.MinHold = 100 * time.Millisecond
		}
		g, err := l.Acquire(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Fatal(err)
		}
	}
	k := b.keys.buckets[0]
	eventually(t, "what is over is cleared away", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		if n := b.client.ZCard(t.Context(), k.kept).Val(); n != many/2 {
			return fmt.Errorf("%d are kept", n)
		}
		if keys := b.client.Keys(t.Context(), k.lock+"*").Val(); len(keys) != many/2 {
			return fmt.Errorf("%d locks are there", len(keys))
		}
		return nil
	})
	all, err := b.List(t.Context(), "kept/", lock.Page{Limit: lock.MaxPage})
	if err != nil || len(all) != many/2 {
		t.Fatalf("%d are listed, %v", len(all), err)
	}
	for _, st := range all {
		if len(st.Holders) != 1 || st.Holders[0].Kept <= 0 || st.Holders[0].Lease != "" {
			t.Fatalf("%+v", st)
		}
	}
	for _, st := range all {
		if err := b.ForceRelease(t.Context(), st.Resource, st.Holders[0].ID, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.client.Exists(t.Context(), k.kept, k.keptEnds).Val(); n != 0 {
		t.Errorf("%d lists of what is kept are left", n)
	}
}
