package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A server that had taken over for a moment, and was left again, takes over once more: it
// grants nothing for the whole grace all the same.
func TestGraceOfAServerThatWasSeenBefore(t *testing.T) {
	const ttl = 4 * time.Second
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL(), ttl)
	_, holder := sidecar(t, s.URL(), ttl)
	beats := func(n int) {
		for range n {
			beat(t, l)
			beat(t, holder)
			time.Sleep(100 * time.Millisecond)
		}
	}
	beats(1)
	fork := testengine.ForkPostgres(t, s)
	lead := func(to testengine.Server) {
		h := &harness{server: to}
		round := func() int64 { return h.execute(t, "SELECT value FROM {meta} WHERE name='keeper'")[0].Int(0) }
		was := round()
		road.Retarget(testengine.Nodes(t, to)[0].Addr())
		road.Inject(testengine.Sever)
		eventually(t, "the keeper is there", func() error {
			beats(1)
			if round() == was {
				return errors.New("it is not")
			}
			return nil
		})
	}
	lead(fork)
	lead(s)
	beats(60) // longer than the grace
	g := hold(t, holder, "r", lock.Exclusive)
	relies := time.Now().Add(ttl) // its last heartbeat may be as late as this
	beat(t, holder)
	road.Retarget(testengine.Nodes(t, fork)[0].Addr())
	road.Inject(testengine.Sever)
	eventually(t, "the new server grants", func() error {
		beat(t, l)
		try := request("r", lock.Exclusive)
		try.Try = true
		_, err := l.Acquire(t.Context(), try)
		return err
	})
	if early := time.Until(relies); early > 0 {
		t.Errorf("two holders: granted %s before %s relies on it no more", early, g.ID)
	}
}
