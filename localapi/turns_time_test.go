package localapi

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/workers"
)

// receivers are streams whose turns are looked after, in fake time.
type receivers struct {
	*service
	began time.Time
}

func inReceivers(t *testing.T, f func(*testing.T, *receivers)) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{workers: workers.New()}
		s.turns = &turns{run: s.workers.Run}
		f(t, &receivers{&service{Server: s}, time.Now()})
		time.Sleep(time.Second)
		s.workers.Close()
	})
}

// stream is one whose receiver makes its first trip from now on, and when another one has received in its place.
func (r *receivers) stream(t *testing.T) (*sessionStream, func() time.Duration) {
	took := time.Duration(-1)
	st := r.newStream(t.Context(), wire{inline: true, more: func() bool { return false }, recv: func() (*pb.SessionRequest, error) {
		took = time.Since(r.began)
		return nil, io.EOF
	}})
	st.turn.Store(1)
	return st, func() time.Duration { return took }
}

func (r *receivers) watching() bool {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	return r.turns.watching
}

// at waits for a moment, and for all that is due by then.
func (r *receivers) at(d time.Duration) {
	time.Sleep(d - time.Since(r.began))
	synctest.Wait()
}

// TestTurnsEndInTime: a receiver keeps its connection for shortTrip, and not for twice that time. Then its client is
// looked at. So it is for each of those who come one after the other.
func TestTurnsEndInTime(t *testing.T) {
	inReceivers(t, func(t *testing.T, r *receivers) {
		type one struct {
			*sessionStream
			from time.Duration
			took func() time.Duration
		}
		var all []one
		for n := range 4 * fewTicks {
			r.at(time.Duration(n)*shortTrip + time.Duration(n%4)*shortTrip/8)
			st, took := r.stream(t)
			all = append(all, one{st, time.Since(r.began), took})
			r.turns.add(keptTurn{st, 1})
		}
		over, _ := r.stream(t)
		r.turns.add(keptTurn{over, 3}) // it has another turn by now
		r.at(time.Second)
		for n, o := range all {
			if kept := o.took() - o.from; kept < shortTrip || kept > 2*shortTrip {
				t.Errorf("receiver %d kept its connection for %v", n, kept)
			}
			if o.askers.watch != watched {
				t.Errorf("receiver %d: its client is not looked at", n)
			}
		}
		if over.turn.Load() != 1 || over.askers.watch != 0 {
			t.Errorf("another turn was ended: %d", over.turn.Load())
		}
	})
}

// TestLookingAtTurnsIsShort: it ends after some looks without a receiver, counted from the last one.
func TestLookingAtTurnsIsShort(t *testing.T) {
	for _, adds := range [][]time.Duration{{0}, {0, 5*shortTrip + shortTrip/2}} {
		inReceivers(t, func(t *testing.T, r *receivers) {
			for _, from := range adds {
				r.at(from)
				st, _ := r.stream(t)
				r.turns.add(keptTurn{st, 1})
			}
			end := adds[len(adds)-1].Truncate(shortTrip) + (2+fewTicks+1)*shortTrip
			if r.at(end - shortTrip/2); !r.watching() {
				t.Errorf("nobody looks before %v", end)
			}
			if r.at(end + shortTrip/2); r.watching() {
				t.Errorf("somebody looks after %v", end)
			}
		})
	}
}

// TestReceivingIsKeptForWhoIsQuick: the second of two requests that come one after the other is looked after.
func TestReceivingIsKeptForWhoIsQuick(t *testing.T) {
	inReceivers(t, func(t *testing.T, r *receivers) {
		st, _ := r.stream(t)
		st.flying = 1
		if st.mayKeep(1) || r.watching() {
			t.Error("kept for the first request")
		}
		time.Sleep(shortTrip)
		if !st.mayKeep(3) || !r.watching() {
			t.Error("not kept for the next one")
		}
	})
}
