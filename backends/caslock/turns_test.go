package caslock

import (
	"context"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// disturbs has a sidecar be cut off, or hear nothing, for a while now and then.
func (w *world) disturbs(ctx context.Context, s *worldSidecar) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(w.upTo(20 * time.Second)):
		}
		d, cut := w.upTo(5*time.Second), w.intn(2) == 0
		w.mu.Lock()
		if w.healed {
			w.mu.Unlock()
			return
		}
		w.note("%s is cut off: %t, deaf for %s", s.l.ID(), cut, d)
		if cut {
			s.silent = time.Now().Add(d)
		}
		w.mu.Unlock()
		mute := func(muted bool) {
			s.r.mu.Lock()
			s.r.muted = muted
			s.r.mu.Unlock()
		}
		mute(true)
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
		mute(false)
	}
}

// starvesNobody has one more sidecar ask for each lock, while the others go on.
func (w *world) starvesNobody(born time.Time) {
	time.Sleep(time.Minute) // what is kept is over
	s := w.sidecar(born)
	for i := range 10 {
		q := request(lock.Resource("r" + strconv.Itoa(i%2)))
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		g, err := s.l.Acquire(ctx, q)
		cancel()
		w.Logf("waited %s: %v", time.Since(began), err)
		if err != nil || time.Since(began) > 30*time.Second {
			w.Errorf("waited %s: %v", time.Since(began), err)
		} else {
			w.mu.Lock()
			w.got(s, g, g.ID, began)
			w.mu.Unlock()
			w.lets(g.ID, time.Time{})
		}
		w.gone(s, q.Resource, q.ID, lock.ErrUnavailable)
	}
	w.end(s, true)
}
