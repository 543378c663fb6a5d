package localapi

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/session"
)

const (
	// refusalsEvery is how often it is logged that connections of one principal are refused, after the first one.
	refusalsEvery = 10 * time.Second
	// maxRefused is for how many principals and reasons that is counted by itself. The others are counted together.
	maxRefused = 256
)

// refusals logs which connections are refused: the first one of a principal for a reason at once, and then how many there
// were. A line for each would be as many as somebody can connect.
type refusals struct {
	s *Server

	mu sync.Mutex
	of map[refusedFor]*turnedAway
}

// refusedFor is whose connections are refused, and why. The zero one is for all whom there is no room for.
type refusedFor struct {
	who session.Principal
	why string
}

// turnedAway are those connections that are not logged yet.
type turnedAway struct {
	count int
	last  *conn
	why   error
}

// count counts one connection that is refused. It does not block.
func (r *refusals) count(c *conn, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusedFor{c.who(), why.Error()}
	if r.of[key] == nil && len(r.of) >= maxRefused {
		key = refusedFor{}
	}
	if x := r.of[key]; x != nil {
		x.count++
		x.last, x.why = c, why
		return
	}
	r.of[key] = &turnedAway{}
	r.s.running.Go(func() { r.log(key, c, why) })
}

// log logs the first one, and then how many there were, until for some time there was none.
func (r *refusals) log(key refusedFor, first *conn, why error) {
	r.s.o.Logger.Warn("connection refused", append(first.whois(), keyError, why)...)
	tick := time.NewTicker(refusalsEvery)
	defer tick.Stop()
	since := time.Now()
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-r.s.stopping.Done():
			ended = true
		}
		r.mu.Lock()
		x := *r.of[key]
		if ended = ended || x.count == 0; ended {
			delete(r.of, key)
		} else {
			*r.of[key] = turnedAway{}
		}
		r.mu.Unlock()
		if x.count > 0 {
			r.s.o.Logger.Warn("connections refused", append(x.last.whois(), keyCount, x.count, keyIn, time.Since(since).Round(time.Second), keyError, x.why)...)
		}
		since = time.Now()
	}
}
