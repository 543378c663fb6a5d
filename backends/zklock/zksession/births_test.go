package zksession

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
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

// pieces is a connection that gives one byte at a time.
type pieces struct {
	net.Conn
	io.Reader
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b) }

// TestBirths: transactions are learned in whatever pieces the answers come, other answers,
// large ones too, do not disturb, and the library gets all as it came.
func TestBirths(t *testing.T) {
	long := "/" + strings.Repeat("x", 600)
	var stream []byte
	for _, p := range [][]byte{
		packet(1, 0, "/a", 11), packet(2, 0, "/not-made", 12), packet(3, -110, "", 0), packet(4, 0, long, 14),
		packet(6, 0, "/"+strings.Repeat("y", 20_000), 16), {0, 0, 0, 2, 1, 2}, packet(5, 0, "/b", 1<<62),
	} {
		stream = append(stream, p...)
	}
	for what, from := range map[string]io.Reader{"at once": bytes.NewReader(stream), "in bytes": iotest.OneByteReader(bytes.NewReader(stream))} {
		l := newLink(nil, pieces{Reader: from}, nil)
		l.greeted = true
		for _, xid := range []int32{1, 3, 4, 5} {
			l.births.expect(xid)
		}
		got, err := io.ReadAll(l)
		if err != nil || !bytes.Equal(got, stream) {
			t.Errorf("%s: the library reads %d bytes, want %d: %v", what, len(got), len(stream), err)
		}
		for path, want := range map[string]int64{"/a": 11, "/not-made": 0, long: 14, "/b": 1 << 62} {
			if got := l.births.take(path); got != want {
				t.Errorf("%s: %.20s was made by %d, want %d", what, path, got, want)
			}
		}
		if m := &l.births; m.take("/a") != 0 || len(m.waiting) != 0 || len(m.born) != 0 || l.last != 99 {
			t.Errorf("%s: it remembers %v, %v and %d", what, m.waiting, m.born, l.last)
		}
	}
}
