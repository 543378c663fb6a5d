package zklock

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const opChildren int32 = 12

// several is a cohort.
type several struct{}

func (several) Stay() bool { return false }

func forSeveral(r lock.Resource, m lock.Mode) lock.Request {
	q := request(r, m)
	q.Cohort = several{}
	return q
}

// holdFor is hold, for several.
func holdFor(t testing.TB, l *lease, r lock.Resource, m lock.Mode) lock.Grant {
	t.Helper()
	return granted(t, l, forSeveral(r, m))
}

// news are the events of a lease.
type news struct {
	t  testing.TB
	mu sync.Mutex
	of map[lock.HoldID][]lock.EventKind
}

// read renews a lease, and reads its events, until the test is over.
func read(t testing.TB, l *lease) *news {
	beating(t, l, l.ttl/10)
	return events(t, l)
}

// events reads the events of a lease until the test is over.
func events(t testing.TB, l *lease) *news {
	n := &news{t: t, of: make(map[lock.HoldID][]lock.EventKind)}
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case e := <-l.Events():
				n.mu.Lock()
				n.of[e.ID] = append(n.of[e.ID], e.Kind)
				n.mu.Unlock()
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		reader.Wait()
	})
	return n
}

func (n *news) all(id lock.HoldID) []lock.EventKind {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[id]
}

// contended waits until it is told that somebody stands behind a request.
func (n *news) contended(id lock.HoldID) {
	n.t.Helper()
	eventually(n.t, "it is told that somebody stands behind", func() error {
		if all := n.all(id); len(all) != 1 || all[0] != lock.Contended {
			return fmt.Errorf("told: %v", all)
		}
		return nil
	})
}

// listensAgain waits until a line has heard of so many changes, and listens.
func listensAgain(t testing.TB, l *lease, r lock.Resource, changes int) {
	t.Helper()
	hasHeard(t, l, r, changes, listening)
}

// hasHeard waits until a line has heard of so many changes, and is as it should be.
func hasHeard(t testing.TB, l *lease, r lock.Resource, changes int, is ear) {
	t.Helper()
	path, _ := l.driver.b.tree.lockPath(r)
	eventually(t, "it has heard", func() error {
		l.driver.mu.Lock()
		defer l.driver.mu.Unlock()
		if line := l.driver.lines[path]; line.changes < changes || line.ear != is {
			return fmt.Errorf("after %d changes: %d", line.changes, line.ear)
		}
		return nil
	})
}

// TestTripsForSeveral: a request with a cohort costs what one without does, and nothing
// while it is held and nobody comes; its own coming and going is no news.
func TestTripsForSeveral(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		_, l, requests := rechecked(t, url+options+"&timeout=10s", 40*time.Second, 200*time.Millisecond)
		told := events(t, l)
		r := unique()
		want := map[string]int{"create": 40, "children": 40, "delete": 40}
		if strings.HasSuffix(options, layoutCurator) {
			want = map[string]int{"multi": 80, "children": 40}
		}
		// The server removes the node of a lock that is empty, sooner than a slow one makes the next.
		path, _ := l.driver.b.tree.lockPath(r)
		first := hold(t, l, r, lock.Exclusive)
		if _, err := stranger(t, url).Create(path+"/stays", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		release(t, l, first)
		for _, how := range []func(testing.TB, *lease, lock.Resource, lock.Mode) lock.Grant{hold, holdFor} {
			eventually(t, "20 pairs of each mode take no more than they must", func() error {
				_ = beat(t.Context(), l) // it is not renewed meanwhile
				requests.take()
				for range 20 {
					release(t, l, how(t, l, r, lock.Exclusive))
					release(t, l, how(t, l, r, lock.Shared))
				}
				n, _ := requests.take()
				delete(n, "get") // of a hold that lasts, and it may on a busy machine
				if !maps.Equal(n, want) {
					return fmt.Errorf("they took %v", n)
				}
				return nil
			})
		}
		for range 10 {
			holdFor(t, l, unique(), lock.Exclusive)
			holdFor(t, l, unique(), lock.Shared)
		}
		requests.take()
		time.Sleep(3 * l.driver.recheck)
		if n, _ := requests.take(); n["get"] > 20 || n["children"]+n["set"]+n["multi"] > 0 {
			t.Errorf("20 holds took %v", n)
		}
		told.mu.Lock()
		defer told.mu.Unlock()
		if len(told.of) > 0 {
			t.Errorf("told that somebody stands behind, and nobody did: %v", told.of)
		}
	})
}

// TestWhoStandsBehind: a request with a cohort is told of who must wait for it, once, whoever that
// is, and not of who need not wait, nor of others of its own lease.
func TestWhoStandsBehind(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		_, l, requests := counted(t, url+options, 30*time.Second)
		told := read(t, l)
		b, o := sidecar(t, url+options, 30*time.Second)
		live(t, o)
		for _, c := range []struct{ ours, other lock.Mode }{
			{lock.Exclusive, lock.Exclusive}, {lock.Exclusive, lock.Shared}, {lock.Shared, lock.Exclusive},
		} {
			r := unique()
			g := holdFor(t, l, r, c.ours)
			requests.take()
			w := queue(t, b, o, request(r, c.other))
			told.contended(g.ID)
			if n, _ := requests.take(); c.ours == lock.Exclusive && n["children"] > 0 {
				t.Errorf("it has asked who came, and there was no doubt: %v", n)
			}
			release(t, l, g)
			release(t, o, w.granted())
		}

		// A reader is no news for readers, and one of ours is none for anybody.
		r := unique()
		g := holdFor(t, l, r, lock.Shared)
		beside := hold(t, o, r, lock.Shared)
		listensAgain(t, l, r, 1)
		q := forSeveral(r, lock.Exclusive)
		own := queue(t, b, l, q)
		listensAgain(t, l, r, 2)
		if all := told.all(g.ID); len(all) > 0 {
			t.Errorf("told of a reader beside it, or of its own: %v", all)
		}
		w := queue(t, b, o, request(r, lock.Shared))
		told.contended(q.ID) // who waits is told, too
		release(t, l, g)
		release(t, o, beside)
		release(t, l, own.granted())
		release(t, o, w.granted())
	})
}

// TestStrangersAreHeardOf: another program's request is one, too.
func TestStrangersAreHeardOf(t *testing.T) { again(t, testStrangersAreHeardOf) }

func testStrangersAreHeardOf(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	_, l := sidecar(t, s.URL()+"/behind?layout="+layoutCurator, 30*time.Second)
	told := read(t, l)
	r := unique()
	g := holdFor(t, l, r, lock.Exclusive)
	recipe := zk.NewLock(stranger(t, s.URL()), "/behind/"+string(r), zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- recipe.Lock() }()
	told.contended(g.ID)
	release(t, l, g)
	if err := errors.Join(<-locked, recipe.Unlock()); err != nil {
		t.Error(err)
	}
}

// TestHeardOfByTwoAtOnce: whoever of two is first hears of the other, whatever meets what on the
// way.
func TestHeardOfByTwoAtOnce(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		type side struct {
			l    *lease
			told *news
		}
		var sides []side
		for range 2 {
			_, l := sidecar(t, url+options, 30*time.Second)
			sides = append(sides, side{l, read(t, l)})
		}
		r := unique()
		for range 15 {
			type result struct {
				side
				g   lock.Grant
				err error
			}
			done := make(chan result, len(sides))
			for _, s := range sides {
				go func() {
					g, err := s.l.Acquire(t.Context(), forSeveral(r, lock.Exclusive))
					done <- result{s, g, err}
				}()
			}
			for i := range sides {
				won := <-done
				if won.err != nil {
					t.Fatalf("Acquire: %v", won.err)
				}
				if i == 0 {
					won.told.contended(won.g.ID)
				}
				release(t, won.l, won.g)
			}
		}
	})
}

// TestHeardOfAfterASilence: somebody came while nothing came through.
func TestHeardOfAfterASilence(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, road := newRoad(t, url)
		_, l := sidecar(t, road+options, 30*time.Second)
		told := read(t, l)
		b, o := sidecar(t, url+options, 30*time.Second)
		live(t, o)
		r := unique()
		g := holdFor(t, l, r, lock.Exclusive)
		way.silent(true)
		w := queue(t, b, o, request(r, lock.Exclusive))
		way.silent(false)
		way.sever()
		told.contended(g.ID)
		release(t, l, g)
		release(t, o, w.granted())
	})
}

// TestListLostAfterNews: the list that is to tell who came is lost, and made again.
func TestListLostAfterNews(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, road := newRoad(t, url)
		_, l := sidecar(t, road+options, 30*time.Second)
		told := read(t, l)
		b, o := sidecar(t, url+options, 30*time.Second)
		live(t, o)
		r := unique()
		g := holdFor(t, l, r, lock.Shared)
		lost := way.once(opChildren, string(r), cutBefore)
		w := queue(t, b, o, request(r, lock.Exclusive))
		<-lost
		told.contended(g.ID)
		release(t, l, g)
		release(t, o, w.granted())
	})
}

// TestHeardOfWhileOverdue: an overdue lease asks for nothing, so it lists who came when it is
// renewed.
func TestHeardOfWhileOverdue(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		var ahead atomic.Int64
		b := openAt(t, url+options)
		b.clock = func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) }
		b.recheckOf = func(time.Duration) time.Duration { return time.Hour }
		t.Cleanup(func() { _ = b.Close() })
		l := newLease(t, b, 30*time.Second)
		told := events(t, l)
		b2, o := sidecar(t, url+options, 30*time.Second)
		live(t, o)
		r := unique()
		g := holdFor(t, l, r, lock.Shared)
		ahead.Store(int64(31 * time.Second))
		w := queue(t, b2, o, request(r, lock.Exclusive))
		hasHeard(t, l, r, 1, deaf)
		eventually(t, "it is renewed", func() error { return beat(t.Context(), l) })
		told.contended(g.ID)
		release(t, l, g)
		release(t, o, w.granted())
	})
}

// TestReadersMakeNoHerd: many readers that come and go do not make each other list the queue.
func TestReadersMakeNoHerd(t *testing.T) { again(t, testReadersMakeNoHerd) }

func testReadersMakeNoHerd(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	_, l, requests := counted(t, s.URL()+"?timeout=5s", 30*time.Second)
	read(t, l)
	_, o := sidecar(t, s.URL()+"?timeout=5s", 30*time.Second)
	live(t, o)
	r := unique()
	holdFor(t, l, r, lock.Shared)
	const many = 100
	for range many {
		hold(t, o, r, lock.Shared)
	}
	path, _ := l.driver.b.tree.lockPath(r)
	eventually(t, "it has listed all", func() error {
		l.driver.mu.Lock()
		defer l.driver.mu.Unlock()
		if n := len(l.driver.lines[path].queue); n <= many {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	requests.take()
	began := time.Now()
	for range 100 {
		release(t, o, hold(t, o, r, lock.Shared))
	}
	n, _ := requests.take()
	if most := 2 + 3*int(time.Since(began)/(many*pauseForEach))/2; n["children"] > most {
		t.Errorf("while 100 came and went, it listed the queue %d times, want at most %d", n["children"], most)
	}
}

// TestDescribe: others see who has a hold now, and a forced release is told as before.
func TestDescribe(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		_, l := sidecar(t, url+options, 30*time.Second)
		b, _ := sidecar(t, url+options, 30*time.Second)
		told := read(t, l)
		r := unique()
		g := holdFor(t, l, r, lock.Exclusive)
		time.Sleep(2 * lastsAfter) // its node is watched
		next := lock.Owner{Label: "next", Turn: &lock.Turn{LockID: "another"}}
		describe := func(of lock.Resource, id lock.HoldID) error {
			return l.Lease.(lock.Contender).Describe(t.Context(), of, id, next.Encode())
		}
		if err := describe(r, g.ID); err != nil {
			t.Fatalf("Describe: %v", err)
		}
		st, err := b.Get(t.Context(), r)
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Label != "next" || st.Holders[0].Owner.Turn.LockID != "another" || !st.Holders[0].Cohort || st.Holders[0].Sidecar != t.Name() {
			t.Errorf("Get has %+v, %v", st, err)
		}
		forced, _ := force(t, b, g, time.Minute)
		eventually(t, "its release is forced", func() error {
			if all := told.all(g.ID); len(all) != 1 || all[0] != lock.Revoked {
				return fmt.Errorf("told: %v", all)
			}
			return nil
		})
		release(t, l, g)
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
		for _, of := range []lock.Resource{r, unique()} {
			if err := describe(of, g.ID); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Describe of what is no hold: %v", err)
			}
		}
	})
}
