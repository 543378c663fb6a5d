package zksession

import (
	"encoding/binary"
	"sync"
)

// births learns which transaction has made a node.
//
// The library makes nodes by the request create, whose answer is the path. There
// is another one, create2 (ZooKeeper 3.5), with the same arguments, whose answer
// has the Stat of the node behind the path. So the link sends create2 where the
// library says create, and reads along. The library does not look at what is
// behind the path. Without this, each lock would cost one request more.
type births struct {
	mu      sync.Mutex
	waiting map[int32]struct{} // numbers of requests that make a node
	born    map[string]int64   // transactions, by path
}

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

// answer reads the answer to a request: of create2 the length of the path, the path, and the
// Stat, which begins with the transaction.
func (m *births) answer(xid, code int32, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.waiting[xid]; !ok {
		return
	}
	delete(m.waiting, xid)
	if code != 0 {
		return
	}
	if path, ok := pathAt(body, 0); ok && len(body) >= 4+len(path)+8 {
		m.born[string(path)] = int64(binary.BigEndian.Uint64(body[4+len(path):])) //nolint:gosec // the same bits
	}
}
