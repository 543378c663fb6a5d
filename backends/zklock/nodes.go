package zklock

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Names of the nodes that are requests for a lock. They are Curator's (5.7,
// StandardLockInternalsDriver and InterProcessReadWriteLock), which sorts them by
// the number that the server puts behind the last of these words:
//
//	_c_ID-__WRIT__0000000007   exclusive
//	_c_ID-__READ__0000000008   shared
//	_c_ID-lock-0000000009      exclusive, by a plain InterProcessMutex
//
// A request for one of 4 permits, which Curator's locks take for an exclusive one, is
//
//	_c_ID-limit.4-__WRIT__0000000010
//
// and one with a MinHold of a minute, and the node that is left of it when its holder is gone,
//
//	_c_ID-least.60000-__WRIT__0000000011
//	_c_ID-kept.60000-__WRIT__0000000011
//
// One that may be detached, the node that is there for a detached hold, and that of a lease to which it is
// attached, which has a hash as its KEY, are
//
//	_c_ID-may.detach-__WRIT__0000000012
//	_c_ID-detached.KEY-__WRIT__0000000012
//	_c_ID-held.KEY-__WRIT__0000000012
//
// where _c_ID- is Curator's "protection", by which a client finds its node again
// when the answer to the create was lost; our ID is the HoldID.
//
// Curator's plain mutex sees only lock- nodes, and its read-write lock only the
// other two; they do not exclude each other on one path. Ours exclude both. In
// the layout of Curator a request makes, in the same transaction, a second node
//
//	_c_ID-guard-lock-0000000006
//
// just before its own, which an InterProcessMutex takes for one of its own kind
// and the read-write lock does not see. We ourselves overlook it: our requests
// look at the first node only, and wait for all three words.
const (
	protection = "_c_"
	wordWrite  = "__WRIT__"
	wordRead   = "__READ__"
	wordMutex  = "lock-"
	wordGuard  = "guard-" + wordMutex
	wordLimit  = "limit."
	wordLeast  = "least."
	wordKept   = "kept."

	wordMayDetach = "may.detach"
	wordDetached  = "detached."
	wordHeld      = "held."
)

// node is one request as its name tells it.
type node struct {
	name   string
	id     lock.HoldID
	shared bool
	limit  int           // of a permit: how many there are; else 0
	least  time.Duration // its MinHold; 0: it has none
	kept   bool          // nobody has it any more, see kept.go
	loose  bool          // it may become another node, see detach.go
	key    lock.HandleKey
	seq    int32
}

// called is the name of a node without its number.
func (n node) called() string {
	word := wordWrite
	if n.shared {
		word = wordRead
	}
	return idPrefix(n.id) + n.middle() + word
}

// numbered is its name.
func (n node) numbered() string { return fmt.Sprintf("%s%010d", n.called(), n.seq) }

// middle is what its name has between its id and its word. An id has no dots.
func (n node) middle() string {
	var parts []string
	switch {
	case n.least > 0 && n.kept:
		parts = append(parts, wordKept+strconv.FormatInt(toMillis(n.least), 10))
	case n.least > 0:
		parts = append(parts, wordLeast+strconv.FormatInt(toMillis(n.least), 10))
	}
	switch {
	case n.key != "" && n.kept:
		parts = append(parts, wordDetached+string(n.key))
	case n.key != "":
		parts = append(parts, wordHeld+string(n.key))
	case n.loose:
		parts = append(parts, wordMayDetach)
	}
	if n.limit > 0 {
		parts = append(parts, wordLimit+strconv.Itoa(n.limit))
	}
	return strings.Join(append(parts, ""), "-")
}

// keptName is the name of the node that is left of a request with a MinHold, or of one to which a hold is attached.
func keptName(name string) string {
	return strings.Replace(strings.Replace(name, "-"+wordLeast, "-"+wordKept, 1), "-"+wordHeld, "-"+wordDetached, 1)
}

// left is the node that may be left of a request with a MinHold, or of one to which a hold is attached.
func (n node) left() node {
	n.name, n.kept = keptName(n.name), true
	return n
}

// byTransaction reports whether a request is granted by a transaction.
func (n node) byTransaction() bool { return n.limit > 0 || n.least > 0 || n.key != "" }

// cutLoose takes apart what cutLimit has left of what is before the word of a request.
func cutLoose(id string) (rest string, key lock.HandleKey, kept, loose bool) {
	if rest, loose := strings.CutSuffix(id, "-"+wordMayDetach); loose {
		return rest, "", false, true
	}
	for _, word := range []string{wordHeld, wordDetached} {
		i := strings.LastIndex(id, "-"+word)
		if i < 0 {
			continue
		}
		if key := id[i+1+len(word):]; len(key) == hex.EncodedLen(sha256.Size) && strings.Trim(key, "0123456789abcdef") == "" {
			return id[:i], lock.HandleKey(key), word == wordDetached, true
		}
	}
	return id, "", false, false
}

// cutLeast takes apart what cutLoose has left of what is before the word of a request.
func cutLeast(id string) (rest string, least time.Duration, kept bool) {
	for _, word := range []string{wordLeast, wordKept} {
		if i := strings.LastIndex(id, "-"+word); i >= 0 {
			ms, err := strconv.ParseInt(id[i+1+len(word):], 10, 64)
			if err == nil && ms > 0 && ms <= toMillis(lock.MaxMinHold) {
				return id[:i], fromMillis(ms), word == wordKept
			}
		}
	}
	return id, 0, false
}

// cutLimit takes apart what is before the word of an exclusive request. An id has no dots.
func cutLimit(id string) (rest string, limit int) {
	i := strings.LastIndex(id, "-"+wordLimit)
	if i < 0 {
		return id, 0
	}
	limit, err := strconv.Atoi(id[i+1+len(wordLimit):])
	if err != nil || limit < 1 || limit > lock.MaxPermits {
		return id, 0
	}
	return id[:i], limit
}

func guardName(id lock.HoldID) string { return idPrefix(id) + wordGuard }

// keptGuard is the name of the guard that is left of a request with a MinHold.
func keptGuard(guard string) string {
	return strings.Replace(guard, "-"+wordGuard, "-"+wordKept+wordGuard, 1)
}

// isKeptGuard reports whether a node is called like one.
func isKeptGuard(name string) bool { return strings.Contains(name, "-"+wordKept+wordGuard) }

// idPrefix begins the names of all nodes of a request.
func idPrefix(id lock.HoldID) string { return protection + string(id) + "-" }

// validID reports whether an id can be part of a node's name.
func validID(id lock.HoldID) bool {
	return id != "" && len(id) <= 64 && strings.Trim(string(id), "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") == ""
}

// parseNode reads the name of a request. It is false for guards, and for nodes
// that others have put there for other purposes.
func parseNode(name string) (node, bool) {
	at, word := -1, ""
	for _, w := range []string{wordWrite, wordRead, wordMutex} {
		if i := strings.LastIndex(name, w); i > at {
			at, word = i, w
		}
	}
	if at < 0 {
		return node{}, false
	}
	number := name[at+len(word):]
	seq, err := strconv.ParseInt(number, 10, 32)
	if err != nil || len(number) < 10 { // the server pads them
		return node{}, false
	}
	n := node{name: name, id: lock.HoldID(name), shared: word == wordRead, seq: int32(seq)}
	if id, ok := strings.CutPrefix(name[:at], protection); ok {
		if word == wordMutex && (strings.HasSuffix(id, "-"+strings.TrimSuffix(wordGuard, wordMutex)) || isKeptGuard(name)) {
			return node{}, false
		}
		id = strings.TrimSuffix(id, "-")
		if word == wordWrite {
			id, n.limit = cutLimit(id)
		}
		if word != wordMutex {
			var kept bool
			id, n.key, kept, n.loose = cutLoose(id)
			id, n.least, n.kept = cutLeast(id)
			n.kept = n.kept || kept
		}
		n.id = lock.HoldID(id)
	}
	return n, true
}

// bySidecar reports whether a sidecar has made a node, as its name tells it: other
// programs may write into it. Curator's IDs have dashes.
func (n node) bySidecar() bool {
	if len(n.id) != len(lock.NewHoldID()) || strings.Trim(string(n.id), "0123456789abcdef") != "" {
		return false
	}
	rest, _ := strings.CutPrefix(n.name, idPrefix(n.id)+n.middle())
	return strings.HasPrefix(rest, wordWrite) || strings.HasPrefix(rest, wordRead)
}

// compareNodes sorts by number. A thread that has Curator's write lock and takes the
// read lock too makes a node with the same number: the writer is first.
func compareNodes(a, b node) int {
	switch {
	case a.seq != b.seq:
		return cmp.Compare(a.seq, b.seq)
	case a.shared != b.shared && b.shared:
		return -1
	case a.shared != b.shared:
		return 1
	}
	return strings.Compare(a.name, b.name)
}

// parseNodes gives the queue of a lock: its children that are requests, in order. What may be
// left of a request is not in it before that is gone.
func parseNodes(children []string) []node {
	return withoutLeft(parseAll(children))
}

// withoutLeft takes out of nodes in order what may be left of requests that are there: it stands
// just before them.
func withoutLeft(nodes []node) []node {
	there := func(i int) bool {
		n := nodes[i]
		return n.kept && i+1 < len(nodes) && nodes[i+1].seq == n.seq && nodes[i+1].id == n.id
	}
	all := make([]node, 0, len(nodes))
	for i, n := range nodes {
		if !there(i) {
			all = append(all, n)
		}
	}
	return all
}

// parseAll are all children that are requests, or left of them, in order.
func parseAll(children []string) []node {
	nodes := make([]node, 0, len(children))
	for _, c := range children {
		if n, ok := parseNode(c); ok {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, compareNodes)
	return nodes
}

// blocker gives the place in the queue that the request for a lock at place i must wait
// for; -1: none. When the request is shared, it may be a writer that was
// downgraded, which its data tells; that one is at place 0 then.
func blocker(nodes []node, i int, shared bool) int {
	if !shared {
		return i - 1
	}
	i--
	for i >= 0 && nodes[i].shared {
		i--
	}
	return i
}

// holders gives how many requests at the head of the queue are granted; of permits, how many
// may be. downgraded says whether the first is a writer that was turned into a reader.
func holders(nodes []node, downgraded bool) int {
	if len(nodes) == 0 {
		return 0
	}
	if limit := nodes[0].limit; limit > 0 {
		n := 1
		for n < len(nodes) && n < limit && nodes[n].limit == limit {
			n++
		}
		return n
	}
	if !nodes[0].shared && !downgraded {
		return 1
	}
	n := 1
	for n < len(nodes) && nodes[n].shared {
		n++
	}
	return n
}

// namesOf are the children that belong to one request.
func namesOf(children []string, n node) []string {
	var names []string
	for _, c := range children {
		if c == n.name || strings.HasPrefix(n.name, idPrefix(n.id)) && strings.HasPrefix(c, idPrefix(n.id)) {
			names = append(names, c)
		}
	}
	return names
}
