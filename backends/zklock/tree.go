package zklock

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// home is the name of the node below which everything of ours is.
const home = "locksidecar"

// tree knows where nodes are.
//
//	CHROOT/locksidecar/fence                     the base of fences
//	CHROOT/locksidecar/leases/LEASE              one node a lease
//	CHROOT/locksidecar/records/BUCKET/NAME       one node a record
//	CHROOT/locksidecar/slots/BUCKET/NAME/NUMBER  one node a permit that is held
//	CHROOT/locksidecar/kept/BUCKET/HOLD          one node a hold that keeps others out when it is gone
//	CHROOT/locksidecar/locks/BUCKET/NAME/REQUEST layout locksidecar
//	CHROOT/NAME/REQUEST                          layout curator
//
// There are 256 buckets, because a list of children must fit into one packet,
// and clients of ZooKeeper take a megabyte. A NAME is escaped in our own layout,
// and in Curator's it is a path as it is. The chroot, our home, and records with their
// buckets are persistent nodes, and what else is below are containers, which the server
// removes when they have been left empty.
type tree struct {
	root    string // the chroot, "" or "/path"
	curator bool
	acl     []zksession.ACL
}

func (c *config) tree() tree { return tree{root: c.chroot, curator: c.curator, acl: c.acl} }

func (t *tree) home() string    { return t.root + "/" + home }
func (t *tree) leases() string  { return t.home() + "/leases" }
func (t *tree) locks() string   { return t.home() + "/locks" }
func (t *tree) records() string { return t.home() + "/records" }
func (t *tree) base() string    { return t.home() + "/fence" }

// slots is the node above the slots of a resource, in both layouts.
func (t *tree) slots(r lock.Resource) string {
	return t.home() + "/slots/" + bucket(r) + "/" + escape(string(r))
}

func (t *tree) slot(r lock.Resource, slot int) string { return slotPath(t.slots(r), slot) }

func slotPath(slots string, slot int) string { return slots + "/" + strconv.Itoa(slot) }

func (t *tree) keeps() string { return t.home() + "/kept" }

// kept is the node by which what is left of a hold is found.
func (t *tree) kept(id lock.HoldID) string {
	return t.keeps() + "/" + bucket(lock.Resource(id)) + "/" + string(id)
}

func (t *tree) lease(id lock.LeaseID) string { return t.leases() + "/" + string(id) }

func bucket(r lock.Resource) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r)) // never fails
	return fmt.Sprintf("%02x", h.Sum32()&0xff)
}

// record is the node of the record of a resource, in both layouts.
func (t *tree) record(r lock.Resource) string { return t.recordBucket(r) + "/" + escape(string(r)) }

func (t *tree) recordBucket(r lock.Resource) string { return t.records() + "/" + bucket(r) }

// lockPath is the node of a resource. The error is an InvalidError.
func (t *tree) lockPath(r lock.Resource) (string, error) {
	if !t.curator {
		return t.locks() + "/" + bucket(r) + "/" + escape(string(r)), nil
	}
	bad := func(problem string) (string, error) {
		return "", &lock.InvalidError{Field: "resource", Problem: problem + " in the layout of Curator"}
	}
	for i, part := range strings.Split(string(r), "/") {
		if problem := checkPart(part); problem != "" {
			return bad("is no path in ZooKeeper: it " + problem)
		}
		if _, ok := parseNode(part); ok {
			return bad(fmt.Sprintf("must not have the part %q, which is called like a request for a lock", part))
		}
		if i == 0 && (part == home || part == "zookeeper" && t.root == "") {
			return bad(fmt.Sprintf("must not begin with %q", part))
		}
	}
	return t.root + "/" + string(r), nil
}

// ancestors are the calls that make a node's ancestors, and the node itself as a
// container. Those that are there already are answered with NodeExists.
func (t *tree) ancestors(node string) []*zksession.Call {
	var calls []*zksession.Call
	for i := 1; i <= len(node); i++ {
		if i < len(node) && node[i] != '/' {
			continue
		}
		mode := zksession.Container
		if p := node[:i]; len(p) <= len(t.root) || p == t.home() || strings.HasPrefix(p, t.records()) {
			mode = zksession.Persistent
		}
		calls = append(calls, zksession.Create(node[:i], nil, t.acl, mode))
	}
	return calls
}

// forbidden reports whether ZooKeeper refuses a character in a path: control
// characters, surrogates and so everything beyond the basic plane, private use,
// and specials (org.apache.zookeeper.common.PathUtils).
func forbidden(r rune) bool {
	return r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
}

// checkPart says what is wrong with one part of a path, in words that complete
// a sentence.
func checkPart(part string) string {
	switch {
	case part == "":
		return "has an empty part"
	case part == "." || part == "..":
		return fmt.Sprintf("has the part %q", part)
	case strings.ContainsFunc(part, forbidden) || !utf8.ValidString(part):
		return fmt.Sprintf("has a character that ZooKeeper refuses, in %q", part)
	}
	return ""
}

const hexDigits = "0123456789ABCDEF"

// escape makes the name of a node of any resource: a slash, a percent sign, and
// what ZooKeeper refuses, become %XX for each byte.
func escape(s string) string {
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	bad := func(r rune) bool { return r == '/' || r == '%' || forbidden(r) }
	if !strings.ContainsFunc(s, bad) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !bad(r) {
			b.WriteRune(r)
			continue
		}
		for _, c := range []byte(string(r)) {
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

// unescape is the resource of a node's name; false when it is no such name.
func unescape(name string) (lock.Resource, bool) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' {
			if i+2 >= len(name) {
				return "", false
			}
			hi, lo := strings.IndexByte(hexDigits, name[i+1]), strings.IndexByte(hexDigits, name[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			c = byte(hi<<4 | lo) //nolint:gosec // two hex digits
			i += 2
		}
		b.WriteByte(c)
	}
	r := b.String()
	return lock.Resource(r), escape(r) == name
}
