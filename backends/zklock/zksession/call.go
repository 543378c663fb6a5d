package zksession

import "fmt"

// opcode is the number of a request's kind.
type opcode int32

const (
	opDelete          opcode = 2
	opGetData         opcode = 4
	opSetData         opcode = 5
	opGetChildren     opcode = 8
	opSync            opcode = 9
	opPing            opcode = 11
	opMulti           opcode = 14
	opCreate          opcode = 15 // create2, which answers with the Stat too
	opCreateContainer opcode = 19
	opAuth            opcode = 100
	opSetWatches      opcode = 101
	opClose           opcode = -11

	// Only in the answer to opMulti.
	opError       opcode = -1
	opPlainCreate opcode = 1
)

var opNames = map[opcode]string{
	opDelete: "delete", opGetData: "get", opSetData: "set", opGetChildren: "children", opSync: "sync", opMulti: "multi",
	opCreate: "create", opCreateContainer: "create-container", opSetWatches: "set-watches", opClose: "close",
}

// AnyVersion is the version of whatever data a node has.
const AnyVersion = -1

// Mode says what kind of node is made. The values are the protocol's.
type Mode int32

// The kinds of nodes.
const (
	Persistent          Mode = 0
	Ephemeral           Mode = 1
	EphemeralSequential Mode = 3
	Container           Mode = 4 // the server deletes it some time after its last child
)

// ACL says who may do what with a node.
type ACL struct {
	Perms      int32
	Scheme, ID string
}

// AllPerms is every permission there is.
const AllPerms = 31

// Call is one request, and its answer once it is done. It is used once.
type Call struct {
	op      opcode
	path    string
	data    []byte
	acl     []ACL
	mode    Mode
	version int32
	watch   bool
	parts   []*Call // of a transaction
	zxid    int64   // set-watches: what the client has seen
	watches []string

	// Then is called when the call is done, on the goroutine that reads from the
	// server, or on the caller's when it was not sent. It must not block, and not
	// send anything.
	Then func(*Call)

	Err      error    // an Error, ErrNotSent, ErrLost, ErrExpired or ErrClosed
	Path     string   // of a node that was made
	Data     []byte   // of a node that was read
	Stat     Stat     // of a node that was made, read or set
	Children []string // names in no order
}

// Create makes a node.
func Create(path string, data []byte, acl []ACL, mode Mode) *Call {
	op := opCreate
	if mode == Container {
		op = opCreateContainer
	}
	return &Call{op: op, path: path, data: data, acl: acl, mode: mode}
}

// Delete removes a node if it has that version.
func Delete(path string, version int32) *Call {
	return &Call{op: opDelete, path: path, version: version}
}

// Get reads a node.
func Get(path string) *Call { return &Call{op: opGetData, path: path} }

// Watch reads a node and, if it is there, has OnEvent called when it is changed
// or deleted, once. A path is watched once, however often it is asked for.
func Watch(path string) *Call { return &Call{op: opGetData, path: path, watch: true} }

// Set replaces the data of a node if it has that version.
func Set(path string, data []byte, version int32) *Call {
	return &Call{op: opSetData, path: path, data: data, version: version}
}

// Children lists the children of a node.
func Children(path string) *Call { return &Call{op: opGetChildren, path: path} }

// Sync makes the server catch up with the leader: what is read after it is not
// older than the moment at which it was sent.
func Sync(path string) *Call { return &Call{op: opSync, path: path} }

// Multi does all the parts, or none of them. A part is a Create of another kind
// than Container, a Delete or a Set; its answer is in the part itself. A part
// that made a node has no Stat: the server leaves it out.
func Multi(parts ...*Call) *Call { return &Call{op: opMulti, parts: parts} }

// Sent reports whether the request may have reached the server.
func (c *Call) Sent() bool { return c.Err != ErrNotSent } //nolint:errorlint // set here, never wrapped

// appendTo appends the request without its header.
func (c *Call) appendTo(b []byte) []byte {
	switch c.op {
	case opCreate, opCreateContainer:
		b = appendString(b, c.path)
		b = appendBuffer(b, c.data)
		b = appendInt(b, int32(len(c.acl))) //nolint:gosec // one or two
		for _, a := range c.acl {
			b = appendInt(b, a.Perms)
			b = appendString(b, a.Scheme)
			b = appendString(b, a.ID)
		}
		return appendInt(b, int32(c.mode))
	case opDelete:
		return appendInt(appendString(b, c.path), c.version)
	case opGetData, opGetChildren:
		return appendBool(appendString(b, c.path), c.watch)
	case opSetData:
		return appendInt(appendBuffer(appendString(b, c.path), c.data), c.version)
	case opSync:
		return appendString(b, c.path)
	case opMulti:
		for _, p := range c.parts {
			b = p.appendTo(appendMultiHeader(b, p.op, false))
		}
		return appendMultiHeader(b, opError, true)
	case opSetWatches:
		b = appendLong(b, c.zxid)
		b = appendStrings(b, c.watches)
		b = appendStrings(b, nil) // watches for nodes that are not there
		return appendStrings(b, nil)
	default: // nothing but the header
		return b
	}
}

func appendMultiHeader(b []byte, op opcode, last bool) []byte {
	return appendInt(appendBool(appendInt(b, int32(op)), last), -1)
}

// read takes the answer. An error is the connection's end.
func (c *Call) read(d *decoder) error {
	switch c.op {
	case opCreate, opCreateContainer:
		c.Path = d.string()
		c.Stat = d.stat()
	case opGetData:
		c.Data = append([]byte(nil), d.buffer()...)
		c.Stat = d.stat()
	case opSetData:
		c.Stat = d.stat()
	case opGetChildren:
		c.Children = d.strings()
	case opMulti:
		c.readParts(d)
	}
	return d.err
}

func (c *Call) readParts(d *decoder) {
	for _, p := range c.parts {
		op, last, code := opcode(d.int()), d.bool(), Error(d.int())
		switch {
		case d.err != nil || last:
			d.err = errMalformed
			return
		case op == opError:
			if code = Error(d.int()); code == 0 { // undone because of another part
				code = errRuntimeInconsistency
			}
			p.Err = code
		case code != 0:
			p.Err = code
		case op == opPlainCreate: // whatever kind of create was asked for
			p.Path = d.string()
		default:
			_ = p.read(d) // d keeps the error
		}
		if p.Err != nil && (c.Err == nil || c.Err == errRuntimeInconsistency) { //nolint:errorlint // set right here
			c.Err = p.Err
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

// String names the request for people.
func (c *Call) String() string {
	name := opNames[c.op]
	if name == "" {
		name = fmt.Sprintf("request %d", c.op)
	}
	if c.op == opCreate && c.mode != Persistent {
		name += fmt.Sprintf("(%d)", c.mode)
	}
	return name + " " + c.path
}
