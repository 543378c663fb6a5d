package localapi

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// maxWatched is of how many clients that were cut off the sidecar goes on to watch the process. Each takes a file.
const maxWatched = 256

// cutOffs counts the sessions of clients that were cut off, by what is watched: one file for all of a process where the kernel
// can tell it.
type cutOffs struct {
	mu sync.Mutex
	of map[int32]int
}

// take reports whether a peer may stay under watch, until give.
func (a *cutOffs) take(p *peercred.Peer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := p.Watched()
	if a.of[id] == 0 && len(a.of) >= maxWatched {
		return false
	}
	a.of[id]++
	return true
}

func (a *cutOffs) give(p *peercred.Peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := p.Watched()
	if a.of[id]--; a.of[id] == 0 {
		delete(a.of, id)
	}
}

// partingFrom gives what ends the session of a stream, however often it is called. stood is not 0 when the stream ends because the
// client has read nothing for so long.
//
// A client that has gone relies on nothing any more, and its locks are free at once. One that was cut off, because it did not
// read, may be frozen: it does not know that, and relies on its locks for as long as it was told that it can. So
// others are kept out of them for so long, or until its process has ended.
func (s *service) partingFrom(ctx context.Context, sess *session.Session) (end func(stood time.Duration)) {
	c, err := connOf(ctx)
	watched := err == nil && c.peer.Retain() // the end of the connection would end the watch of the process
	var once sync.Once
	return func(stood time.Duration) {
		once.Do(func() {
			if err == nil && (stood > 0 || c.isCutOff()) {
				// What it can have read last was said before it stood. By another call, or after that, it may have read until now.
				heard := s.o.Clock() + s.o.Manager.Info().LeaseTTL
				session.EndAt(sess, heard-stood, heard)
				if s.endsLater(c, sess, watched) {
					return
				}
			}
			sess.Close()
			if watched {
				c.peer.Release()
			}
		})
	}
}

// endsLater sees to the end of the session of a client that was cut off, as far as it has not ended yet.
func (s *service) endsLater(c *conn, sess *session.Session, watched bool) bool {
	select {
	case <-sess.Done():
		return false
	default:
	}
	if !watched {
		return true
	}
	if !s.cutOffs.take(c.peer) {
		c.peer.Release()
		return true
	}
	s.running.Go(func() {
		select {
		case <-sess.Done():
		case <-c.peer.Gone:
			sess.Close()
		case <-s.stopping.Done(): // the watch ends now
		}
		s.cutOffs.give(c.peer)
		c.peer.Release()
	})
	return true
}
