package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
)

// choreLease is a lease whose releases end as answer says, and that notes them.
type choreLease struct {
	lock.Lease
	clock  lock.Clock
	answer func(ctx context.Context, id lock.HoldID) error

	mu           sync.Mutex
	asked        []string
	moments      []time.Duration
	flying, most int
}

func (l *choreLease) Release(ctx context.Context, _ lock.Resource, id lock.HoldID) error {
	l.mu.Lock()
	l.asked = append(l.asked, fmt.Sprintf("%s at %v", id, l.clock()))
	l.moments = append(l.moments, l.clock())
	l.flying++
	l.most = max(l.most, l.flying)
	l.mu.Unlock()
	err := l.answer(ctx, id)
	l.mu.Lock()
	l.flying--
	l.mu.Unlock()
	return err
}

// now tells how many releases are under way.
func (l *choreLease) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flying
}

// noAnswer comes when ctx ends.
func noAnswer(ctx context.Context, _ lock.HoldID) error {
	<-ctx.Done()
	return lock.ErrUnavailable
}

// chores runs a test with a janitor, which is stopped in the end, and notes which
// chores are finished.
func chores(t *testing.T, f func(t *testing.T, j *janitor, l *choreLease, add func(id string) *chore)) {
	t.Helper()
	bubble(t, func(t *testing.T, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &choreLease{clock: e.base}
		j := newJanitor(ctx, l, func() {}, func(chore) {}, &logger{out: hclog.NewNullLogger()})
		var mu sync.Mutex
		finished := map[string]int{}
		var all []string
		f(t, j, l, func(id string) *chore {
			all = append(all, id)
			c := chore{session: "s", resource: "r", id: lock.HoldID(id), done: func() {
				mu.Lock()
				defer mu.Unlock()
				finished[id]++
			}}
			j.add(c)
			return &c
		})
		cancel()
		j.stop()
		for _, id := range all {
			if finished[id] != 1 {
				t.Errorf("%s is finished %d times, want once", id, finished[id])
			}
		}
		if len(j.failed) > 0 {
			t.Errorf("%d chores are left", len(j.failed))
		}
	})
}

// TestAChoreIsTriedAgain: the first try has a second, the others five, with a pause that
// doubles, and an answer to any starts the pauses again.
func TestAChoreIsTriedAgain(t *testing.T) {
	const ms = time.Millisecond
	between := func(t *testing.T, l *choreLease, i int, least, most time.Duration) {
		t.Helper()
		l.mu.Lock()
		defer l.mu.Unlock()
		if gap := l.moments[i] - l.moments[i-1]; gap < least || gap >= most {
			t.Errorf("try %d comes %v after the one before, want %v to %v; asked %q", i+1, gap, least, most, l.asked)
		}
	}
	chores(t, func(t *testing.T, j *janitor, l *choreLease, add func(string) *chore) {
		l.answer = noAnswer
		add("a")
		time.Sleep(24 * time.Second)
		between(t, l, 1, 1010*ms, 1020*ms)
		between(t, l, 2, 5020*ms, 5040*ms)
		between(t, l, 3, 5040*ms, 5080*ms)
		between(t, l, 4, 5080*ms, 5160*ms)
	})
	chores(t, func(t *testing.T, j *janitor, l *choreLease, add func(string) *chore) {
		l.answer = func(_ context.Context, id lock.HoldID) error {
			if id == "a" {
				return lock.ErrUnavailable
			}
			return nil
		}
		add("a")
		for range 70 { // tried at 0, 10 to 20, 30 to 60, and 70 to 140
			time.Sleep(ms)
		}
		add("b")
		time.Sleep(time.Second)
		synctest.Wait()
		for i, id := range l.asked {
			if strings.HasPrefix(id, "b") {
				between(t, l, i+2, 10*ms, 20*ms)
			}
		}
	})
}

// TestChoresAtTheSameTime: 64 are new, and 32 of those that were not answered.
func TestChoresAtTheSameTime(t *testing.T) {
	chores(t, func(t *testing.T, j *janitor, l *choreLease, add func(string) *chore) {
		l.answer = noAnswer
		for i := range 300 {
			add(fmt.Sprint(i))
		}
		synctest.Wait()
		if n := l.now(); n != 64 {
			t.Errorf("%d new ones at the same time, want 64", n)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := l.now(); n != 32 {
			t.Errorf("%d late ones at the same time, want 32", n)
		}
		for i := range 100 {
			add(fmt.Sprint("new", i))
		}
		synctest.Wait()
		if n := l.now(); n != 64 || l.most != 64 {
			t.Errorf("%d new and late ones at the same time, %d at most, want 64", n, l.most)
		}
	})
}

// TestChoresOfAJanitorThatStopped are finished at once: they went with the lease.
func TestChoresOfAJanitorThatStopped(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &choreLease{clock: e.base, answer: func(ctx context.Context, _ lock.HoldID) error {
			<-ctx.Done()
			time.Sleep(time.Second) // it ends after stop was called
			return lock.ErrUnavailable
		}}
		j := newJanitor(ctx, l, func() {}, func(chore) {}, &logger{out: hclog.NewNullLogger()})
		var finished []string
		c := func(id lock.HoldID) chore {
			return chore{id: id, done: func() { finished = append(finished, string(id)) }}
		}
		j.add(c("under way"))
		synctest.Wait()
		cancel()
		j.stop()
		j.add(c("later"))
		if !slices.Equal(finished, []string{"under way", "later"}) || len(l.asked) != 1 {
			t.Errorf("%q are finished, %q were asked", finished, l.asked)
		}
		time.Sleep(time.Minute)
		if len(j.failed) != 0 || j.retry != nil {
			t.Error("what was under way is tried again")
		}
	})
}

// TestAChoreSaysThatTheLeaseIsLost, and it is finished.
func TestAChoreSaysThatTheLeaseIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		lost, done := 0, 0
		l := &choreLease{clock: e.base, answer: func(context.Context, lock.HoldID) error { return lock.ErrLeaseLost }}
		j := newJanitor(ctx, l, func() { lost++ }, func(chore) {}, &logger{out: hclog.NewNullLogger()})
		j.add(chore{id: "a", done: func() { done++ }})
		time.Sleep(time.Minute)
		synctest.Wait()
		if lost != 1 || done != 1 || len(l.asked) != 1 {
			t.Errorf("told %d times, finished %d times, asked %q", lost, done, l.asked)
		}
		cancel()
		j.stop()
	})
}

// TestLogLevels: each line is written with its level, and nothing is said of lines that
// were not dropped.
func TestLogLevels(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, level := range []hclog.Level{hclog.Debug, hclog.Info} {
			var out bytes.Buffer
			l := &logger{out: hclog.New(&hclog.LoggerOptions{Level: level, Output: &out, DisableTime: true})}
			l.flush() // nothing was said
			l.Debug("one")
			l.Info("two", "n", 2)
			l.Warn("three")
			l.Error("four")
			l.flush()
			want := "[DEBUG] one\n[INFO]  two: n=2\n[WARN]  three\n[ERROR] four\n"
			if level == hclog.Info {
				_, want, _ = strings.Cut(want, "\n")
			}
			if out.String() != want {
				t.Errorf("%v:\n%swant\n%s", level, &out, want)
			}
		}
	})
}

// stuckLog is a log that nobody reads for a while.
type stuckLog struct {
	hclog.Logger
	read  chan struct{}
	lines int
	said  []any
}

func (l *stuckLog) IsDebug() bool { return true }

func (l *stuckLog) Log(hclog.Level, string, ...any) { <-l.read; l.lines++ }

func (l *stuckLog) Warn(_ string, args ...any) { l.said = args }

// TestALogThatIsNotRead: 256 lines wait, the others are counted, and flush waits a second.
func TestALogThatIsNotRead(t *testing.T) {
	for _, dropped := range []int{0, 1, 3} {
		bubble(t, func(t *testing.T, e *env) {
			out := &stuckLog{read: make(chan struct{})}
			l := &logger{out: out}
			l.Info("the writer has this one")
			synctest.Wait()
			for range 256 + dropped {
				l.Info("line")
			}
			l.flush()
			if e.now() != time.Second {
				t.Errorf("flush has waited %v, want 1s", e.now())
			}
			close(out.read)
			l.flush()
			var want []any
			if dropped > 0 {
				want = []any{keyDropped, dropped}
			}
			if e.now() != time.Second || out.lines != 257 || !slices.Equal(out.said, want) {
				t.Errorf("at %v: %d lines, %v, want %v", e.now(), out.lines, out.said, want)
			}
		})
	}
}

// beats are told to the observer.
type beatObserver struct {
	noObserver
	beats []heartbeat.Result
}

func (o *beatObserver) Heartbeat(b heartbeat.Beat) { o.beats = append(o.beats, b.Result) }

// TestHeartbeatsAreObserved, and their trouble is known.
func TestHeartbeatsAreObserved(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		o := &beatObserver{}
		sc := e.sidecar(func(opt *Options) { opt.Observer = o })
		g := sc.lease.Load()
		if err := g.trouble(); err == nil || err.Error() != "no answer yet" {
			t.Errorf("trouble before the first beat: %v", err)
		}
		time.Sleep(4 * time.Second)
		sc.way.on(down, opHeartbeat)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !slices.Equal(o.beats[:2], []heartbeat.Result{heartbeat.Answered, heartbeat.Failed}) {
			t.Errorf("beats %v", o.beats)
		}
		isErr(t, g.trouble(), errDown)
	})
}

// TestSleepUntil a moment, or the end of ctx, whose cause it gives.
func TestSleepUntil(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		isErr(t, sleepUntil(ctx, time.Now().Add(time.Second)), nil)
		go func() {
			time.Sleep(time.Second)
			cancel(stop)
		}()
		isErr(t, sleepUntil(ctx, time.Now().Add(time.Hour)), stop)
		if e.now() != 2*time.Second {
			t.Errorf("slept until %v, want 2s", e.now())
		}
		isErr(t, sleepUntil(ctx, time.Now()), nil)
	})
}

// TestSnapshots: what a watch is told depends on which look it has seen.
func TestSnapshots(t *testing.T) {
	at := func(number int, names ...string) *snapshot {
		s := &snapshot{number: number, locks: map[lock.Resource]lock.Status{}}
		for _, n := range names {
			s.locks[lock.Resource(n)] = lock.Status{Resource: lock.Resource(n)}
		}
		return s
	}
	now := at(3, "a", "b")
	now.changes = []WatchEvent{{Kind: Changed, Status: lock.Status{Resource: "the last change"}}}
	for _, c := range []struct {
		seen *snapshot
		want string
	}{{at(3), ""}, {at(2), "the last change"}, {at(1, "a"), "b"}, {at(4, "a"), "b"}} {
		got := ""
		for _, e := range now.after(c.seen) {
			got += string(e.Status.Resource)
		}
		if got != c.want {
			t.Errorf("after look %d: %q, want %q", c.seen.number, got, c.want)
		}
	}
}

// TestLooksAreTogether: watches of one interval look at the same moments, counted from
// the first watch.
func TestLooksAreTogether(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var l looks
		sp := e.build().Space
		l.join(sp, "")
		defer l.leave(sp, "")
		began := time.Now()
		for _, c := range []struct{ now, next time.Duration }{{0, 3}, {1, 3}, {2, 3}, {3, 6}, {4, 6}, {7, 9}} {
			time.Sleep(time.Until(began.Add(c.now * time.Second)))
			if got := l.next(3 * time.Second).Sub(began); got != c.next*time.Second {
				t.Errorf("after %vs: the next look is at %v, want %vs", int(c.now), got, int(c.next))
			}
		}
	})
}

// TestErrorsNameTheResourceAsTheApp: without the namespace.
func TestErrorsNameTheResourceAsTheApp(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Namespace = "ns" })
		must(t, sc.session(), exclusive)
		s := sc.session()
		for name, r := range map[string]AcquireRequest{"a try": try(exclusive), "a wait": waiting(exclusive, time.Second)} {
			_, err := s.Acquire(t.Context(), r)
			var held *lock.HeldError
			if !errors.As(err, &held) || held.Status.Resource != "r" || len(held.Status.Holders) != 1 {
				t.Errorf("%s: %v", name, err)
			}
		}
		// A try beside a wait of the same session.
		waits := begin(s, again(exclusive))
		_, err := s.Acquire(t.Context(), try(again(exclusive)))
		var held *lock.HeldError
		if !errors.As(err, &held) || held.Status.Resource != "r" || len(held.Status.Holders) != 1 {
			t.Errorf("a try beside a wait: %v", err)
		}
		sc.way.on(down, opGet)
		_, err = s.Acquire(t.Context(), try(again(exclusive)))
		isErr(t, err, errDown)
		if !strings.HasPrefix(fmt.Sprint(err), "acquire lock: ") {
			t.Errorf("a try while the store is away: %v", err)
		}
		waits.cancel()
		_, _ = waits.wait()
	})
}

// TestBackoff doubles from the shortest pause to the longest; up to half of it is left to
// chance.
func TestBackoff(t *testing.T) {
	for _, c := range []struct {
		tries           int
		lowest, highest time.Duration
		want            time.Duration
	}{
		{0, minPause, maxPause, 20 * time.Millisecond},
		{1, minPause, maxPause, 40 * time.Millisecond},
		{5, minPause, maxPause, 640 * time.Millisecond},
		{6, minPause, maxPause, time.Second},
		{1 << 40, minPause, maxPause, time.Second},
		{0, minOpenPause, maxOpenPause, 50 * time.Millisecond},
		{5, minOpenPause, maxOpenPause, 1600 * time.Millisecond},
		{6, minOpenPause, maxOpenPause, 2 * time.Second},
		{100, 1, 1 << 40, 1 << 20},
	} {
		least, most := c.want, time.Duration(0)
		for range 2000 {
			got := backoff(c.tries, c.lowest, c.highest)
			least, most = min(least, got), max(most, got)
		}
		if least < c.want/2 || least > c.want*51/100 || most >= c.want || most < c.want*99/100 {
			t.Errorf("after %d tries: %v to %v, want %v to %v", c.tries, least, most, c.want/2, c.want)
		}
	}
}
