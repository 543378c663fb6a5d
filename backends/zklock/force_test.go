package zklock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// app is what an app relies on: it reads the news of a lease, and renews it.
type app struct {
	t testing.TB
	l *lease

	mu     sync.Mutex
	proven time.Duration // before the last good heartbeat was sent
	told   map[lock.HoldID]toldAt
}

// toldAt is the last event that told of a forced release.
type toldAt struct{ at, until time.Duration }

// live has a lease renewed, and its news read, until the test is over.
func live(t testing.TB, l *lease) *app {
	a := &app{t: t, l: l, proven: lock.BootTime(), told: make(map[lock.HoldID]toldAt)}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			sent := lock.BootTime()
			bounded, cancel := context.WithTimeout(ctx, l.ttl/3)
			news, err := l.Heartbeat(bounded)
			cancel()
			for _, ev := range news {
				a.hear(ev)
			}
			if err == nil {
				a.mu.Lock()
				a.proven = sent
				a.mu.Unlock()
			}
			select {
			case <-time.After(l.ttl / 10):
			case <-ctx.Done():
			}
		}
	})
	wg.Go(func() {
		for {
			select {
			case ev := <-l.Events():
				a.hear(ev)
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return a
}

func (a *app) hear(ev lock.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if was, told := a.told[ev.ID]; ev.Kind == lock.Revoked && (!told || was.until != ev.Until) {
		a.told[ev.ID] = toldAt{lock.BootTime(), ev.Until}
	}
}

// revoked waits until the app is told of a forced release that ends before some
// moment.
func (a *app) revoked(id lock.HoldID, before time.Duration) (told toldAt) {
	a.t.Helper()
	eventually(a.t, "the holder is told", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if told = a.told[id]; told.at == 0 || told.until >= before {
			return errors.New("it is not")
		}
		return nil
	})
	return told
}

// relies is until when the app relies on a hold.
func (a *app) relies(id lock.HoldID) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	end := a.proven + a.l.ttl
	if r := a.told[id]; r.at != 0 {
		end = min(end, max(r.at, r.until))
	}
	return end
}

// grantedAfter waits for a grant, and checks that it came only when an app did not
// rely on its hold any more.
func (w *wait) grantedAfter(a *app, id lock.HoldID) lock.Grant {
	w.t.Helper()
	g := w.granted()
	if early := a.relies(id) - (lock.BootTime() - time.Since(w.at)); early > 0 {
		w.t.Errorf("granted %s before the holder's app knew", early)
	}
	return g
}

// force forces a release, and returns when the store has it.
func force(t testing.TB, b *Backend, g lock.Grant, grace time.Duration) (forced <-chan error, cancel context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- b.ForceRelease(ctx, g.Resource, g.ID, grace) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	eventually(t, "it is revoked", func() error {
		st, err := b.Get(t.Context(), g.Resource)
		if err != nil {
			return err
		}
		for _, h := range st.Holders {
			if h.ID == g.ID && !h.Revoked {
				return errors.New("it is not")
			}
		}
		for _, w := range st.Waiters {
			if w.ID == g.ID {
				return errors.New("it waits, as far as the server knows")
			}
		}
		return nil
	})
	return done, cancel
}

func (r *road) silent(silent bool) {
	r.set(func(r *road) { r.deaf, r.lost = silent, silent })
}

// eachLayout runs a test in each layout.
func eachLayout(t *testing.T, test func(t testing.TB, url, options string)) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		subtest(t, layout, func(t testing.TB) { test(t, s.URL(), "/force?layout="+layout) })
	}
}

// eachMode is eachLayout, for an exclusive lock and for the only permit.
func eachMode(t *testing.T, test func(t testing.TB, url, options string, m lock.Mode)) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for _, m := range []lock.Mode{lock.Exclusive, lock.Permits(1)} {
			subtest(t, layout+"/"+m.String(), func(t testing.TB) { test(t, s.URL(), "/force?layout="+layout, m) })
		}
	}
}

// unique is a name of this test alone.
func unique() lock.Resource { return "r-" + lock.Resource(lock.NewHoldID()) }

// TestGraceCountsFromWhenTheHolderKnew: nothing comes through to the holder's
// sidecar for longer than the grace of a forced release.
func TestGraceCountsFromWhenTheHolderKnew(t *testing.T) {
	const grace, silence = 500 * time.Millisecond, 2 * time.Second
	eachMode(t, func(t testing.TB, url, options string, m lock.Mode) {
		way, through := newRoad(t, url)
		_, l := sidecar(t, through+options, 15*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		holder := live(t, l)
		live(t, o)
		r := unique()
		g := hold(t, l, r, m)
		w := queue(t, b, o, request(r, m))
		way.silent(true)
		forced, _ := force(t, b, g, grace)
		select {
		case <-w.done:
			t.Fatalf("granted in the silence, %s before the holder's lease was over", holder.relies(g.ID)-lock.BootTime())
		case <-time.After(silence):
		}
		healed := lock.BootTime()
		way.silent(false)
		if told := holder.revoked(g.ID, healed+patience); told.until < healed+grace {
			t.Errorf("the holder was left %s of a grace of %s", told.until-healed, grace)
		}
		release(t, o, w.grantedAfter(holder, g.ID))
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
	})
}

// TestForcedHolderFallsSilent: the holder's sidecar is never heard again. What it
// held is handed on when its lease is over.
func TestForcedHolderFallsSilent(t *testing.T) {
	eachMode(t, func(t testing.TB, url, options string, m lock.Mode) {
		way, through := newRoad(t, url)
		_, l := sidecar(t, through+options, 2*time.Second)
		holder := live(t, l)
		b, o := sidecar(t, url+options, 15*time.Second)
		live(t, o)
		r := unique()
		g := hold(t, l, r, m)
		w := queue(t, b, o, request(r, m))
		way.silent(true)
		forced, _ := force(t, b, g, 100*time.Millisecond)
		release(t, o, w.grantedAfter(holder, g.ID))
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
	})
}

// TestForcerIsGone: whoever forced a release is gone before the holder's sidecar
// hears of it, and that ends the hold itself.
func TestForcerIsGone(t *testing.T) {
	const grace = 300 * time.Millisecond
	eachMode(t, func(t testing.TB, url, options string, m lock.Mode) {
		way, through := newRoad(t, url)
		_, l := sidecar(t, through+options, 15*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		holder := live(t, l)
		live(t, o)
		r := unique()
		g := hold(t, l, r, m)
		w := queue(t, b, o, request(r, m))
		way.silent(true)
		forced, cancel := force(t, b, g, grace)
		cancel()
		if err := <-forced; !errors.Is(err, context.Canceled) && !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("ForceRelease that was cut short: %v", err)
		}
		select {
		case <-w.done:
			t.Fatal("granted before the holder's sidecar knew")
		case <-time.After(2 * grace):
		}
		way.silent(false)
		release(t, o, w.grantedAfter(holder, g.ID))
	})
}

// TestWaiterEndsForcedHold: the holder's sidecar knows of a forced release, and
// falls silent. Whoever forced it is gone too. Who waits counts the grace and ends
// the hold, long before the lease is over.
func TestWaiterEndsForcedHold(t *testing.T) {
	eachMode(t, func(t testing.TB, url, options string, m lock.Mode) {
		way, through := newRoad(t, url)
		_, l := sidecar(t, through+options, 40*time.Second)
		b, o := sidecar(t, url+options, 20*time.Second)
		live(t, o)
		r := unique()
		g := hold(t, l, r, m)
		w := queue(t, b, o, request(r, m))
		forced, cancel := force(t, b, g, 8*time.Second) // time for the looks below, on a busy machine
		ev := event(t, l, g.ID)
		path, _ := b.tree.lockPath(r)
		c := stranger(t, url)
		eventually(t, "the holder's sidecar has acknowledged it", func() error {
			for _, name := range nodes(t, b, url, r) {
				data, _, err := c.Get(path + "/" + name)
				if rec, ours := decodeRecord(data); err == nil && ours && rec.Known != nil {
					return nil
				}
			}
			return errors.New("it has not")
		})
		way.silent(true)
		cancel()
		if err := <-forced; !errors.Is(err, context.Canceled) {
			t.Errorf("ForceRelease that was cut short: %v", err)
		}
		silent := lock.BootTime()
		release(t, o, w.granted())
		switch now := lock.BootTime(); {
		case now < ev.Until:
			t.Errorf("granted %s before the grace was over", ev.Until-now)
		case now > silent+30*time.Second:
			t.Error("granted only when the lease was over")
		}
	})
}

// TestForcedAgain: a second forced release with a longer grace changes nothing,
// and one with a shorter grace is told and counts.
func TestForcedAgain(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		_, l := sidecar(t, url+options, 15*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		holder := live(t, l)
		live(t, o)
		r := unique()
		g := hold(t, l, r, lock.Exclusive)
		w := queue(t, b, o, request(r, lock.Exclusive))
		first, _ := force(t, b, g, time.Hour)
		began := holder.revoked(g.ID, lock.BootTime()+2*time.Hour)
		longer, _ := force(t, b, g, 2*time.Hour)
		shorter, _ := force(t, b, g, 400*time.Millisecond)
		told := holder.revoked(g.ID, began.until-time.Minute)
		if told.until < told.at-patience || told.until > told.at+400*time.Millisecond {
			t.Errorf("the holder was told that %s are left", told.until-told.at)
		}
		release(t, o, w.grantedAfter(holder, g.ID))
		for _, forced := range []<-chan error{first, longer, shorter} {
			if err := <-forced; err != nil {
				t.Errorf("ForceRelease: %v", err)
			}
		}
	})
}

// TestHeartbeatTellsOfForce: no watch of the holder's tells anything. The next
// heartbeat after a forced release tells of it, and all that follow until the hold
// is released.
func TestHeartbeatTellsOfForce(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, through := newRoad(t, url)
		_, l := sidecar(t, through+options, 30*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		live(t, o)
		g, kept, atOnce := hold(t, l, unique(), lock.Exclusive), hold(t, l, unique(), lock.Exclusive), hold(t, l, unique(), lock.Exclusive)
		news := func() (news []lock.Event) {
			t.Helper()
			eventually(t, "a heartbeat is answered", func() (err error) {
				if news, err = l.Heartbeat(t.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) {
					t.Fatalf("Heartbeat: %v", err)
				}
				return err
			})
			return news
		}
		time.Sleep(2 * lastsAfter) // so that watches are set, and not what they tell is lost on the way
		way.set(func(r *road) { r.mute = true })
		if got := news(); len(got) > 0 {
			t.Fatalf("news when nothing has happened: %+v", got)
		}
		forced, _ := force(t, b, g, time.Hour)
		for range 2 {
			got := news()
			if len(got) != 1 || got[0].Kind != lock.Revoked || got[0].ID != g.ID || got[0].Resource != g.Resource {
				t.Fatalf("news after a forced release: %+v", got)
			}
			if left := got[0].Until - lock.BootTime(); left > time.Hour || left < 50*time.Minute {
				t.Errorf("%s are left of an hour", left)
			}
		}
		release(t, l, g)
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
		if got := news(); len(got) > 0 {
			t.Fatalf("news after the release: %+v", got)
		}

		if err := b.ForceRelease(t.Context(), atOnce.Resource, atOnce.ID, 0); err != nil {
			t.Fatal(err)
		}
		got := news()
		if len(got) != 1 || got[0].Kind != lock.Revoked || got[0].ID != atOnce.ID || got[0].Until != 0 {
			t.Fatalf("news after a forced release without a grace: %+v", got)
		}
		release(t, l, kept)
	})
}
