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
	paths   map[string]struct{} // that are watched, or were until the connection ended
	since   int64               // transaction: events of all before were told
	setting map[string]int      // calls under way that set a watch, by path
	late    map[string][]Event  // events of such paths: told after those calls
	asking  map[string][]byte   // requests for watches under way, see link.Write
	asked   int                 // of them, so far
}

func newWatches() watches {
	return watches{
		paths: make(map[string]struct{}), setting: make(map[string]int), late: make(map[string][]Event), asking: make(map[string][]byte),
	}
}

// watching carries out a call that sets a watch. An event that comes before its answer has
// been taken is told after that.
func (s *Session) watching(c *Call, carry func() *link) {
	w := &s.watches
	s.mu.Lock()
	w.setting[c.path]++
	s.mu.Unlock()
	l := carry()
	s.mu.Lock()
	if c.Err == nil && s.on == l {
		w.paths[c.path] = struct{}{}
	}
	moved := c.Err == nil && s.on != l
	s.mu.Unlock()
	if c.Then != nil {
		c.Then(c)
	}
	var late []Event
	s.mu.Lock()
	if moved { // the next connection was not asked for it
		w.late[c.path] = append(w.late[c.path], Event{Path: c.path})
	}
	if w.setting[c.path]--; w.setting[c.path] == 0 {
		delete(w.setting, c.path)
		if late = w.late[c.path]; late != nil {
			delete(w.late, c.path)
			delete(w.paths, c.path)
		}
	}
	s.mu.Unlock()
	for _, ev := range late {
		s.tell(ev)
	}
}

// happened takes an event from the server.
func (s *Session) happened(ev Event) {
	w := &s.watches
	s.mu.Lock()
	wait := w.setting[ev.Path] > 0
	if wait {
		w.late[ev.Path] = append(w.late[ev.Path], ev)
	} else {
		delete(w.paths, ev.Path)
	}
	s.mu.Unlock()
	if !wait {
		s.tell(ev)
	}
}

// maxWatches is how many bytes of paths one request for watches has.
const maxWatches = 128 << 10

// rewatch asks a connection for all that was watched. s.mu is held.
func (s *Session) rewatch(l *link) {
	w := &s.watches
	var some []string
	var all [][]string
	size := 0
	for p := range w.paths {
		if some = append(some, p); len(p)+4+size > maxWatches {
			all, some, size = append(all, some), nil, 0
			continue
		}
		size += len(p) + 4
	}
	if len(some) > 0 {
		all = append(all, some)
	}
	if len(all) == 0 {
		l.watched = true
		return
	}
	since := w.since
	s.routines.Go(func() {
		for _, paths := range all {
			if !s.askFor(paths, since) {
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
func (s *Session) askFor(paths []string, since int64) bool {
	s.mu.Lock()
	s.watches.asked++
	name := fmt.Sprint(watchPrefix, s.watches.asked)
	s.watches.asking[name] = setWatches(paths, since)
	s.mu.Unlock()
	err := outcome(s.conn.Delete(name, math.MaxInt32))
	s.mu.Lock()
	delete(s.watches.asking, name)
	s.mu.Unlock()
	var refused Error
	if errors.As(err, &refused) { // whoever is told reads the node, and watches it
		for _, p := range paths {
			s.happened(Event{Path: p})
		}
		return true
	}
	return err == nil
}

// setWatches is the body of a request for watches on the data of nodes.
func setWatches(paths []string, since int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(since))   //nolint:gosec // the same bits
	b = binary.BigEndian.AppendUint32(b, uint32(len(paths))) //nolint:gosec // small
	for _, p := range paths {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p))) //nolint:gosec // small
		b = append(b, p...)
	}
	return append(b, make([]byte, 8)...) // no others: of nodes that are not there, and of children
}

// marked sets the watch in a request that reads a node, where one is asked for.
func (s *Session) marked(request []byte) {
	path, ok := pathOf(request)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches.setting[string(path)] > 0 {
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
