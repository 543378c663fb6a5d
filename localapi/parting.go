package localapi

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/session"
)

// maxWatched is of how many clients that were cut off the sidecar goes on to watch the process. Each takes a file.
const maxWatched = 256

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
				// What it can have read last was said before it stood. On another stream of its connection it may read until now.
				until := s.o.Clock() - stood + s.o.Manager.Info().LeaseTTL
				if until > s.o.Clock() {
					s.endLater(c, sess, until, watched)
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

// endLater ends the session of a client that was cut off.
func (s *service) endLater(c *conn, sess *session.Session, until time.Duration, watched bool) {
	session.EndAt(sess, until)
	if !watched {
		return
	}
	if s.watched.Add(1) > maxWatched {
		s.watched.Add(-1)
		c.peer.Release()
		return
	}
	s.running.Go(func() {
		select {
		case <-sess.Done():
		case <-c.peer.Gone:
			sess.Close()
		case <-s.stopping.Done(): // the watch ends now
		}
		s.watched.Add(-1)
		c.peer.Release()
	})
}
