package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/lock"
)

// next takes an event that must be there.
func next(t *testing.T, r *Events) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	e, err := r.Next(ctx)
	if err != nil {
		t.Errorf("Next = %v", err)
	}
	return e
}

// silent checks that a reader has nothing to read.
func silent(t *testing.T, r *Events) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if e, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("event %+v, %v, want none", e, err)
	}
}

// TestEveryReaderGetsTheLosses: one that went away, one beside it, and one that
// comes later, until the app acknowledges.
func TestEveryReaderGetsTheLosses(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		first, second := s.Events(), s.Events()
		var lost []lock.HoldID
		for _, name := range []string{"a", "b"} {
			g := must(t, s, named(name))
			lost = append(lost, g.LockID)
			if _, err := sc.ForceRelease(t.Context(), name, g.LockID, 0); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for i, r := range []*Events{first, second, s.Events()} {
			for _, id := range lost {
				if ev := next(t, r); ev.Lost == nil || ev.Lost.LockID != id || ev.Lost.Reason != Forced {
					t.Errorf("reader %d: %+v, want the loss of %s", i, ev, id)
				}
			}
			silent(t, r)
		}
		_, err := s.Release(t.Context(), lost[0], "")
		isLost(t, err, Forced)
		late := s.Events()
		if ev := next(t, late); ev.Lost == nil || ev.Lost.LockID != lost[1] {
			t.Errorf("after the acknowledgement: %+v", ev)
		}
		// Then news of the lease, the same for each reader.
		must(t, s, named("c"))
		time.Sleep(sc.o.TTL)
		for _, r := range []*Events{first, second, late} {
			if ev := next(t, r); ev.Lease == nil || ev.Lease.Until <= e.now() {
				t.Errorf("event %+v", ev)
			}
			silent(t, r)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = sc.Drain(ctx) }()
		synctest.Wait()
		for _, r := range []*Events{first, second, s.Events()} {
			for {
				if ev := next(t, r); ev.Lost == nil {
					if ev.Draining == nil {
						t.Errorf("event %+v", ev)
					}
					break
				}
			}
			silent(t, r)
		}
	})
}

// TestLossesThatNobodyAcknowledgesCount: none is dropped; the app that never says
// that it knows gets no more holds, and others do.
func TestLossesThatNobodyAcknowledgesCount(t *testing.T) {
	for name, limits := range map[string]Limits{
		"holds":         {HoldsPerSession: 5},
		"holds per uid": {HoldsPerUID: 5},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(func(o *Options) { o.Limits = limits })
				s := sc.session()
				for range 5 {
					g := must(t, s, exclusive)
					if _, err := sc.ForceRelease(t.Context(), "r", g.LockID, 0); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				var l *LimitError
				_, err := s.Acquire(t.Context(), exclusive)
				if !errors.As(err, &l) || l.Limit != name || l.Max != 5 {
					t.Errorf("Acquire = %v", err)
				}
				other := sc.session(func(r *OpenRequest) { r.Peer.UID = 2000 })
				must(t, other, exclusive)
				for range 5 {
					l := lostEvent(t, s)
					_, err := s.Release(t.Context(), l.LockID, "")
					isLost(t, err, Forced)
				}
				must(t, s, named("x"))
			})
		})
	}
}

// TestHoldsInGraceCount: what the sidecar still keeps for an app is the app's.
func TestHoldsInGraceCount(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits.HoldsPerSession = 1 })
		s := sc.session()
		must(t, s, with(exclusive, func(r *AcquireRequest) { r.MaxHold = time.Second }))
		time.Sleep(1500 * time.Millisecond) // in its grace
		_, err := s.Acquire(t.Context(), named("x"))
		isErr(t, err, ErrLimit)
	})
}

// TestLossesAreToldWithoutPushes: every push is dropped, and the heartbeat brings
// the news, told as often as it likes.
func TestLossesAreToldWithoutPushes(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.mute = true
		s := sc.session()
		r := s.Events()
		g := must(t, s, exclusive)
		forced := make(chan error, 1)
		go func() {
			_, err := sc.ForceRelease(context.Background(), "r", g.LockID, time.Minute)
			forced <- err
		}()
		synctest.Wait()
		silent(t, r)
		time.Sleep(sc.o.TTL)
		ev := next(t, r)
		if ev.Lost == nil || ev.Lost.Reason != Forced || ev.Lost.LockID != g.LockID {
			t.Errorf("event %+v", ev)
		}
		time.Sleep(sc.o.TTL) // the heartbeats tell it again
		silent(t, r)
		if n := len(sc.obs.lost); n != 1 {
			t.Errorf("%d losses are counted", n)
		}
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, Forced)
		isErr(t, <-forced, nil)

		// A hold whose grant is on its way is told as well.
		goOn := make(chan struct{})
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			<-goOn
			return err
		}, opAcquire)
		p := begin(s, exclusive)
		st, err := sc.Get(t.Context(), "r")
		if err != nil || len(st.Holders) != 1 {
			t.Fatalf("Get = %+v, %v", st, err)
		}
		go func() {
			_, err := sc.ForceRelease(context.Background(), "r", st.Holders[0].ID, time.Minute)
			forced <- err
		}()
		time.Sleep(sc.o.TTL)
		close(goOn)
		_, err = p.wait()
		isLost(t, err, Forced)
		isErr(t, <-forced, nil)
	})
}

// blocked is a log that nobody reads.
type blocked struct{ free chan struct{} }

func (b *blocked) Write(p []byte) (int, error) {
	<-b.free
	return len(p), nil
}

// TestABlockedLogStopsNoNotice: every kind of loss is told in time although each
// line of the log blocks, and the lease is kept.
func TestABlockedLogStopsNoNotice(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sink := &blocked{free: make(chan struct{})}
		sc := e.sidecar(func(o *Options) {
			o.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: sink})
		})
		defer close(sink.free)
		for range maxLines + 10 { // more than can wait
			sc.session().Close()
			sc.log.Warn("full")
		}
		time.Sleep(time.Minute)
		isErr(t, sc.Ready(), nil) // heartbeats go on

		s := sc.session()
		g := must(t, s, with(exclusive, func(r *AcquireRequest) { r.MaxHold = time.Second }))
		began := e.now()
		if l := lostEvent(t, s); l.Reason != MaxHold || e.now() != began+time.Second {
			t.Errorf("lost %+v at %v", l, e.now())
		}
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, MaxHold)

		g = must(t, s, exclusive)
		if _, err := sc.ForceRelease(t.Context(), "r", g.LockID, 0); err != nil {
			t.Error(err)
		}
		if l := lostEvent(t, s); l.Reason != Forced {
			t.Errorf("lost %+v", l)
		}

		brief := sc.session(ttlSession)
		must(t, brief, exclusive)
		began = e.now()
		if l := lostEvent(t, brief); l.Reason != SessionExpired || e.now() != began+5*time.Second {
			t.Errorf("lost %+v at %v", l, e.now())
		}

		must(t, s, named("x"))
		sc.way.on(hang, opHeartbeat, opRelease, opOpen)
		began = e.now()
		if l := lostEvent(t, s); l.Reason != LeaseExpired || e.now() > began+9*time.Second {
			t.Errorf("lost %+v after %v", l, e.now()-began)
		}
		sc.way.on(nil, opHeartbeat, opRelease, opOpen)
		stopped := e.now()
		if err := sc.stop(); err != nil || e.now()-stopped > 10*time.Second {
			t.Errorf("Run = %v after %v: the log holds up the end", err, e.now()-stopped)
		}
	})
}

// TestLogLinesAreWritten in their order, and what was dropped is said.
func TestLogLinesAreWritten(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sink := &blocked{free: make(chan struct{})}
		lines := &recorder{}
		log := logger{out: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: lines, DisableTime: true})}
		log.Debug("not asked for")
		log.Info("one")
		log.flush()
		log.out = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: sink})
		log.Info("blocks")
		synctest.Wait()
		log.mu.Lock()
		log.out = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: lines, DisableTime: true})
		log.mu.Unlock()
		for i := range maxLines + 7 {
			log.Info(fmt.Sprint("line ", i))
		}
		close(sink.free)
		log.flush()
		all := string(lines.all)
		want := "[INFO]  one\n"
		for i := range maxLines {
			want += fmt.Sprintf("[INFO]  line %d\n", i)
		}
		want += "[WARN]  log lines were dropped: the log is not read: dropped=7\n"
		if all != want {
			t.Errorf("log:\n%s", all)
		}
	})
}

type recorder struct{ all []byte }

func (r *recorder) Write(p []byte) (int, error) {
	r.all = append(r.all, p...)
	return len(p), nil
}
