package session

import (
	"context"
	"testing"
	"time"
)

// TestTheGraceIsKeptWhenTheSessionEnds: an administrator has forced a release, or
// the lease is over. The app was told how long others are kept out; the end of its
// session by its ttl or with the sidecar does not cut that short without a word.
func TestTheGraceIsKeptWhenTheSessionEnds(t *testing.T) {
	t.Run("ttl", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			a, b := e.sidecar(), e.sidecar()
			s := a.session(ttlSession)
			g := must(t, s, exclusive)
			next := begin(b.session(), exclusive)
			time.Sleep(4500 * time.Millisecond)
			go func() { _ = e.store.ForceRelease(context.Background(), "r", g.LockID, 10*time.Second) }()
			told := lostEvent(t, s)
			graceHolds(t, e, s, told, next)
		})
	})
	t.Run("sidecar", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			a, b := e.sidecar(), e.sidecar()
			s := a.session()
			g := must(t, s, exclusive)
			next := begin(b.session(), exclusive)
			go func() { _ = e.store.ForceRelease(context.Background(), "r", g.LockID, 10*time.Second) }()
			told := lostEvent(t, s)
			go func() { _ = a.stop() }()
			graceHolds(t, e, s, told, next)
		})
	})
	t.Run("lease and sidecar", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			a, b := e.sidecar(), e.sidecar()
			s := a.session()
			must(t, s, exclusive)
			next := begin(b.session(), exclusive)
			a.way.on(mute, opHeartbeat, opOpen)
			told := lostEvent(t, s)
			go func() { _ = a.stop() }()
			graceHolds(t, e, s, told, next)
		})
	})
}

// graceHolds reads the losses of s to the end, and checks that the next one comes
// not before the last grace that was told.
func graceHolds(t *testing.T, e *env, s *Session, told Lost, next *pending) {
	t.Helper()
	for {
		ev, err := news(s).Next(context.Background())
		if err != nil {
			break
		}
		if ev.Lost != nil {
			told = *ev.Lost
		}
	}
	if _, err := next.wait(); err != nil || e.now() < told.GraceEnd {
		t.Errorf("the next one: %v at %v, and the app was told that others are kept out until %v", err, e.now(), told.GraceEnd)
	}
}
