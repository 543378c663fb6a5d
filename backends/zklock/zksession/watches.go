package zksession

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// watches are the nodes that a session watches. The library knows nothing of them: it
// reads such a node as any other, and the link sets the watch in the request (go-zookeeper
// 1.0.4, getDataRequest). For each watch of its own the library would keep a channel, and on
// another connection it would ask for them while it takes answers already: that reads and
// writes the number of the last answer without a lock (Conn.lastZxid), and once that
// number is of the new connection, what happened between the connections is never told.
//
// Here the server is asked what has happened since the last answer of the last connection on
// which all watches were set. An event comes before every answer that is later than what it tells of,
// so none is missed; one that comes twice does no harm. All of it stands under the session's mutex.
type watches struct {
	of     map[target]*watch
	since  int64             // transaction: events of all before were told
	asking map[string][]byte // requests for watches under way, see link.Write
	asked  int               // of them, so far
}

// target is what is watched: the data of a node, or its children.
type target struct {
	path  string
	below bool
}

// watch is of what may be watched.
type watch struct {
	set bool // it is, and has told nothing yet
}

func newWatches() watches {
	return watches{of: make(map[target]*watch), asking: make(map[string][]byte)}
}

func (c *Call) target() target { return target{c.path, c.below} }

// watch is called before a call that reads a node and watches it, unless it is watched already.
// From then on it is asked for on each new connection, so it does not matter which of them
// carries the call.
func (s *Session) watch(c *Call) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches.of[c.target()]
	if w == nil {
		w = new(watch)
		s.watches.of[c.target()] = w
	}
	return w
}

// watched is called with the answer to such a call.
func (s *Session) watched(c *Call, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w != s.watches.of[c.target()]: // it has told meanwhile
	case c.Err == nil:
		w.set = true
	case !w.set && lost(c.Err) == nil: // the node is not there, or may not be read
		delete(s.watches.of, c.target())
	}
}

// happened takes an event from the server.
func (s *Session) happened(ev Event) {
	s.mu.Lock()
	if delete(s.watches.of, target{ev.Path, ev.Below}); ev.Deleted {
		delete(s.watches.of, target{ev.Path, true})
	}
	s.mu.Unlock()
	if s.cfg.OnEvent != nil {
		s.cfg.OnEvent(ev)
	}
}

// maxWatches is how many bytes of paths one request for watches has.
const maxWatches = 128 << 10

// rewatch asks a connection for all that was watched. s.mu is held.
func (s *Session) rewatch(l *link) {
	var all [][]target
	size := maxWatches
	for w := range s.watches.of {
		if size += 4 + len(w.path); size > maxWatches {
			all, size = append(all, nil), 4+len(w.path)
		}
		all[len(all)-1] = append(all[len(all)-1], w)
	}
	if l.watched = len(all) == 0; l.watched {
		return
	}
	since := s.watches.since
	s.routines.Go(func() {
		for _, some := range all {
			if !s.askFor(some, since) {
				return // the next connection is asked again
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		l.watched = s.on == l
	})
}

// watchPrefix begins the path of what the library takes for a Delete, and the link sends as a
// request for watches. It has to be a path; no version of such a node is ever that large.
const watchPrefix = "/locksidecar watches "

// askFor has the server tell what has happened to nodes since a transaction, and watch those
// to which nothing has. It is no request that somebody makes, so it is not counted as one
// (see wanted).
func (s *Session) askFor(some []target, since int64) bool {
	s.mu.Lock()
	s.watches.asked++
	name := fmt.Sprint(watchPrefix, s.watches.asked)
	s.watches.asking[name] = setWatches(some, since)
	s.mu.Unlock()
	err := outcome(s.conn.Delete(name, math.MaxInt32))
	s.mu.Lock()
	delete(s.watches.asking, name)
	s.mu.Unlock()
	var refused Error
	if errors.As(err, &refused) { // whoever is told reads the node, and watches it
		for _, w := range some {
			s.happened(Event{Path: w.path, Below: w.below})
		}
		return true
	}
	return err == nil
}

// setWatches is the body of a request for watches: on the data of nodes, on nodes that are not
// there, and on children.
func setWatches(some []target, since int64) []byte {
	var data, below []string
	for _, w := range some {
		if w.below {
			below = append(below, w.path)
		} else {
			data = append(data, w.path)
		}
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(since)) //nolint:gosec // the same bits
	for _, paths := range [][]string{data, nil, below} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(paths))) //nolint:gosec // small
		for _, p := range paths {
			b = binary.BigEndian.AppendUint32(b, uint32(len(p))) //nolint:gosec // small
			b = append(b, p...)
		}
	}
	return b
}

// marked sets the watch in a request that reads a node, or those below it, where one is asked
// for.
func (s *Session) marked(request []byte, below bool) {
	path, ok := pathOf(request)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches.of[target{string(path), below}]; w != nil && !w.set {
		request[len(request)-1] = 1
	}
}

// asksForWatches gives the request for watches that a Delete stands for; nil: it is one.
func (s *Session) asksForWatches(request []byte) []byte {
	path, ok := pathOf(request)
	if !ok || !bytes.HasPrefix(path, []byte(watchPrefix)) {
		return nil
	}
	s.mu.Lock()
	body := s.watches.asking[string(path)]
	s.mu.Unlock()
	if body == nil {
		return nil
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body))) //nolint:gosec // small
	b = append(b, request[4:8]...)                               // its number
	b = binary.BigEndian.AppendUint32(b, opSetWatches)
	return append(b, body...)
}

// pathOf is the path of a request that begins with one, behind its length, number and kind.
func pathOf(request []byte) ([]byte, bool) { return pathAt(request, 12) }

// pathAt is the path that stands there in a request.
func pathAt(request []byte, at int) ([]byte, bool) {
	if len(request) < at+4 {
		return nil, false
	}
	size, rest := int(number(request[at:])), request[at+4:]
	if size < 0 || size > len(rest) {
		return nil, false
	}
	return rest[:size], true
}
