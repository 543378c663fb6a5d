package zksession

import (
	"github.com/go-zookeeper/zk"
)

// AnyVersion is the version of whatever data a node has.
const AnyVersion = -1

// Mode says what kind of node is made.
type Mode int32

// The kinds of nodes.
const (
	Persistent          Mode = zk.FlagPersistent
	Ephemeral           Mode = zk.FlagEphemeral
	EphemeralSequential Mode = zk.FlagEphemeralSequential
	Container           Mode = zk.FlagContainer // the server deletes it some time after its last child
)

// ACL says who may do what with a node.
type ACL = zk.ACL

// AllPerms is every permission there is.
const AllPerms = zk.PermAll

// Stat is what the server keeps about a node.
type Stat = zk.Stat

// Call is one request, and its answer once it is done. It is used once.
type Call struct {
	name    string // for whom observes
	path    string
	watches bool
	below   bool // it is the children that are watched
	makes   bool // a node
	ordered bool // only when nothing from before can come later, see Sync
	parts   []*Call
	request any // of a part of a transaction
	do      func(*zk.Conn) answer

	Err      error    // an Error, ErrNotSent, ErrLost, ErrExpired or ErrClosed
	Path     string   // of a node that was made
	Data     []byte   // of a node that was read
	Stat     Stat     // of a node that was read or set; of one that was made only Czxid, 0 where that is not known
	Children []string // names in no order
}

// answer is what the library gives for a call. The call itself is not touched
// before that: its caller may have gone away.
type answer struct {
	path     string
	data     []byte
	stat     *Stat
	children []string
	parts    []zk.MultiResponse
	err      error
}

// Create makes a node.
func Create(path string, data []byte, acl []ACL, mode Mode) *Call {
	c := &Call{name: "create", path: path, makes: mode != Container, request: &zk.CreateRequest{Path: path, Data: data, Acl: acl, Flags: int32(mode)}}
	c.do = func(conn *zk.Conn) (a answer) {
		if mode == Container {
			a.path, a.err = conn.CreateContainer(path, data, int32(mode), acl)
		} else {
			a.path, a.err = conn.Create(path, data, int32(mode), acl)
		}
		return a
	}
	return c
}

// Delete removes a node if it has that version.
func Delete(path string, version int32) *Call {
	return &Call{
		name: "delete", path: path, request: &zk.DeleteRequest{Path: path, Version: version},
		do: func(conn *zk.Conn) answer { return answer{err: conn.Delete(path, version)} },
	}
}

// Get reads a node.
func Get(path string) *Call {
	return &Call{name: "get", path: path, do: func(conn *zk.Conn) (a answer) {
		a.data, a.stat, a.err = conn.Get(path)
		return a
	}}
}

// Watch reads a node and, if it is there, has OnEvent called when it is changed
// or deleted, once; perhaps before the answer.
func Watch(path string) *Call {
	c := Get(path)
	c.watches = true
	return c
}

// Set replaces the data of a node if it has that version.
func Set(path string, data []byte, version int32) *Call {
	return &Call{
		name: "set", path: path, request: &zk.SetDataRequest{Path: path, Data: data, Version: version},
		do: func(conn *zk.Conn) (a answer) {
			a.stat, a.err = conn.Set(path, data, version)
			return a
		},
	}
}

// Check is for Multi alone: it fails unless a node has the version that was read.
func Check(read *Call) *Call {
	return &Call{name: "check", path: read.path, request: &zk.CheckVersionRequest{Path: read.path, Version: read.Stat.Version}}
}

// Children lists the children of a node.
func Children(path string) *Call {
	return &Call{name: "children", path: path, do: func(conn *zk.Conn) (a answer) {
		a.children, _, a.err = conn.Children(path)
		return a
	}}
}

// WatchChildren lists the children of a node and, if it is there, has OnEvent called when
// one comes or goes, or the node is deleted, once; perhaps before the answer.
func WatchChildren(path string) *Call {
	c := Children(path)
	c.watches, c.below = true, true
	return c
}

// Sync makes the server catch up with the leader: what is read behind it is not
// older than the moment at which it was sent. It also waits until no earlier
// call can reach the server any more, however that call has ended: a call whose
// answer did not come in time may still be on its way.
func Sync(path string) *Call {
	return &Call{name: "sync", path: path, ordered: true, do: func(conn *zk.Conn) (a answer) {
		_, a.err = conn.Sync(path)
		return a
	}}
}

// Barrier is answered only by a leader that a majority follows, while the session
// lives: a write that changes nothing. Like Sync it waits until no earlier call can
// reach the server any more. So what is read behind it in this session is final: what
// came to a server before is done, or will never be.
func Barrier() *Call {
	root := &Call{path: "/", Stat: Stat{Version: AnyVersion}}
	c := Multi(Check(root))
	c.name, c.ordered = "barrier", true
	return c
}

// Multi does all the parts, or none of them. A part is a Create of another kind
// than Container, a Delete, a Set or a Check; its answer is in the part itself. A part
// that made a node has no Stat: the server leaves it out.
func Multi(parts ...*Call) *Call {
	var requests []any
	for _, p := range parts {
		requests = append(requests, p.request)
	}
	return &Call{name: "multi", path: parts[0].path, parts: parts, do: func(conn *zk.Conn) (a answer) {
		a.parts, a.err = conn.Multi(requests...)
		return a
	}}
}

// take takes the answer over.
func (c *Call) take(a answer) {
	if a.stat != nil {
		c.Stat = *a.stat
	}
	c.Path, c.Data, c.Children = a.path, a.data, a.children
	if len(a.parts) != len(c.parts) {
		c.fail(outcome(a.err))
		return
	}
	c.Err = outcome(a.err)
	for i, p := range a.parts {
		part := c.parts[i]
		part.Path, part.Err = p.String, outcome(p.Error)
		if p.Stat != nil {
			part.Stat = *p.Stat
		}
	}
	// Where a part has failed, the others were undone and say nothing of their own.
	for _, part := range c.parts {
		if c.Err != nil && part.Err == nil {
			part.Err = c.Err
		}
	}
}

// fail gives the call, and its parts, an error.
func (c *Call) fail(err error) {
	c.Err = err
	for _, p := range c.parts {
		p.Err = err
	}
}

// Of is the path that the call is of.
func (c *Call) Of() string { return c.path }

// String names the request for people.
func (c *Call) String() string { return c.name + " " + c.path }
