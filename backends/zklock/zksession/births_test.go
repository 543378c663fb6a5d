package zksession

import (
	"encoding/binary"
	"strings"
	"testing"
)

// packet is an answer with a path and a transaction, as create2 gives it.
func packet(xid, code int32, path string, zxid uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(xid))
	b = binary.BigEndian.AppendUint64(b, 99)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	if code == 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(len(path)))
		b = append(b, path...)
		b = binary.BigEndian.AppendUint64(b, zxid)
		b = append(b, make([]byte, 60)...) // the rest of the Stat
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// TestBirths: transactions are learned in whatever pieces the answers come, and
// other answers, large ones too, do not disturb.
func TestBirths(t *testing.T) {
	long := "/" + strings.Repeat("x", 600)
	var stream []byte
	for _, p := range [][]byte{
		packet(1, 0, "/a", 11), packet(2, 0, "/not-made", 12), packet(3, -110, "", 0), packet(4, 0, long, 14),
		packet(6, 0, "/"+strings.Repeat("y", 3*maxHead), 16), {0, 0, 0, 2, 1, 2}, packet(5, 0, "/b", 1<<62),
	} {
		stream = append(stream, p...)
	}
	for _, size := range []int{1, 2, 3, 5, 7, 16, 100, 4096, len(stream)} {
		var m births
		for _, xid := range []int32{1, 3, 4, 5} {
			m.expect(xid)
		}
		for rest := stream; len(rest) > 0; {
			n := min(size, len(rest))
			m.read(rest[:n])
			rest = rest[n:]
		}
		for path, want := range map[string]int64{"/a": 11, "/not-made": 0, long: 14, "/b": 1 << 62} {
			if got := m.take(path); got != want {
				t.Errorf("in pieces of %d: %.20s was made by %d, want %d", size, path, got, want)
			}
		}
		if m.take("/a") != 0 || len(m.waiting) != 0 || len(m.born) != 0 {
			t.Errorf("in pieces of %d: it remembers %v and %v", size, m.waiting, m.born)
		}
	}
}
