package faultproxy

import (
	"encoding/binary"
	"io"
	"testing"
)

const lengthSize, numberSize = 4, 4

// numbered: its length, its number, a text.
var numbered = &Framing{
	LengthSize: lengthSize,
	Length:     func(head []byte) int64 { return lengthSize + int64(binary.BigEndian.Uint32(head)) },
	Number: func(head []byte) (uint32, bool) {
		if len(head) < lengthSize+numberSize {
			return 0, false
		}
		return binary.BigEndian.Uint32(head[lengthSize:]), true
	},
}

// frame is a message of numbered.
func frame(number uint32, text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(numberSize+len(text)))
	return append(binary.BigEndian.AppendUint32(b, number), text...)
}

func TestFrames(t *testing.T) {
	var all []byte
	for i, text := range []string{"hello /b", "create /a", "create /b", "get /c"} {
		all = append(all, frame(uint32(i), text)...)
	}
	begin := int64(len(frame(0, "hello /b")) + len(frame(1, "create /a")))
	for size := 1; size <= len(all); size++ {
		f, g := frames{framing: numbered}, frames{framing: numbered}
		var number uint32
		var passed int64
		found, stopped := false, false
		for rest := all; len(rest) > 0; {
			piece := rest[:min(size, len(rest))]
			rest = rest[len(piece):]
			if x, ok := f.pass(piece, "/b"); ok {
				number, found = x, true
			}
			if !stopped {
				var n int64
				n, stopped = g.before(piece, 2)
				g.pass(piece[:n], "")
				passed += n
			}
		}
		if !found || number != 2 {
			t.Errorf("in pieces of %d: request %d, %v; want 2", size, number, found)
		}
		// Of the message itself no more passes than tells its number.
		if !stopped || passed < begin || passed >= begin+lengthSize+numberSize || size == len(all) && passed != begin {
			t.Errorf("in pieces of %d: %d bytes pass before the answer, %v; want %d", size, passed, stopped, begin)
		}
	}
}

// Where requests are pipelined, answers to earlier ones are not taken for the one.
func TestProxyLoseReplyOfMany(t *testing.T) {
	s := newServer(t) // answers when a line is complete
	p, err := To(t.Context(), s.ln.Addr().String(), Options{Framing: numbered})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	c := dial(t, p.Addr())
	hello, first, second, third := frame(0, "hello"), frame(1, "create /a"), frame(2, "create /b"), frame(3, "get\n")
	lost := p.LoseReply("/b", Sever)
	for _, f := range [][]byte{hello, first, second, third} {
		if _, err := c.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	wantSprung(t, lost)
	want := string(hello) + string(first)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v; want %q", got, err, want)
	}
	c.wantReset("")
	if n := s.count(); n != 1 {
		t.Fatalf("the server has seen %d lines; want 1", n)
	}
}
