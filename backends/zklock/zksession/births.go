package zksession

import (
	"encoding/binary"
	"sync"
)

// births learns which transaction has made a node, and up to which one the server has
// answered.
//
// The library makes nodes by the request create, whose answer is the path. There
// is another one, create2 (ZooKeeper 3.5), with the same arguments, whose answer
// has the Stat of the node behind the path. So the link sends create2 where the
// library says create, and reads along. The library does not look at what is
// behind the path. Without this, each lock would cost one request more.
type births struct {
	// Of the library's reader alone: the packet that is being read.
	size int    // what is still to come of it; 0: the length is next
	head []byte // its beginning, as far as it is looked at; of the length too
	last int64  // transaction that the last answer is not older than

	mu      sync.Mutex
	waiting map[int32]struct{} // numbers of requests that make a node
	born    map[string]int64   // transactions, by path
}

// maxHead is what is looked at of an answer: its header, a path and a number.
const maxHead = 4 << 10

// expect notes a request that makes a node.
func (m *births) expect(xid int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting == nil {
		m.waiting, m.born = make(map[int32]struct{}), make(map[string]int64)
	}
	m.waiting[xid] = struct{}{}
}

// take gives the transaction that has made a node, once; 0: not known.
func (m *births) take(path string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	zxid := m.born[path]
	delete(m.born, path)
	return zxid
}

// read reads along what comes from the server, in whatever pieces.
func (m *births) read(b []byte) {
	for len(b) > 0 {
		if m.size == 0 {
			n := min(len(b), 4-len(m.head))
			m.head, b = append(m.head, b[:n]...), b[n:]
			if len(m.head) == 4 {
				m.size, m.head = int(max(0, number(m.head))), m.head[:0]
			}
			continue
		}
		n := min(len(b), m.size)
		if room := maxHead - len(m.head); room > 0 {
			m.head = append(m.head, b[:min(n, room)]...)
		}
		m.size, b = m.size-n, b[n:]
		if m.size == 0 {
			m.answer(m.head)
			m.head = m.head[:0]
		}
	}
}

// answer reads a whole packet: the number of the request, the last transaction,
// an error code; of create2 the length of the path, the path, and the Stat, which
// begins with the transaction.
func (m *births) answer(p []byte) {
	const header = 4 + 8 + 4
	if len(p) < header {
		return
	}
	xid := number(p)
	if zxid := int64(binary.BigEndian.Uint64(p[4:])); xid >= 0 && zxid > 0 { //nolint:gosec // the same bits
		m.last = zxid
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.waiting[xid]; !ok {
		return
	}
	delete(m.waiting, xid)
	body := p[header:]
	if number(p[12:]) != 0 || len(body) < 4 {
		return
	}
	path := body[4:]
	if n := int(number(body)); n >= 0 && len(path) >= n+8 {
		m.born[string(path[:n])] = int64(binary.BigEndian.Uint64(path[n:])) //nolint:gosec // the same bits
	}
}
