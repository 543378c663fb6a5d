package testengine

import (
	"bytes"
	"encoding/binary"
)

// frames follows one direction of a connection on which every message begins
// with its length and, but for the first, its number: ZooKeeper's. An answer
// has the number of its request.
type frames struct {
	past bool   // the first message has passed, in which client and server agree
	head []byte // the beginning of the message that is on its way, with its length
	seen int    // how much of it has passed
}

const (
	lengthSize = 4
	numberSize = 4
	// maxFrameHead is how much of a message is kept to find a word in it.
	maxFrameHead = 64 << 10
)

// take follows a piece to the end of the message, and no further. It returns
// how much that was and whether the message is complete now.
func (f *frames) take(piece []byte) (n int, complete bool) {
	n = min(len(piece), max(0, lengthSize-f.seen))
	if f.seen+n >= lengthSize {
		head := append(bytes.Clone(f.head[:min(len(f.head), lengthSize)]), piece[:n]...)
		length := lengthSize + int64(binary.BigEndian.Uint32(head))
		n = int(min(int64(len(piece)), length-int64(f.seen)))
		complete = int64(f.seen+n) == length
	}
	f.seen += n
	f.head = append(f.head, piece[:min(n, maxFrameHead-len(f.head))]...)
	return n, complete
}

// number is that of the message that is on its way, as far as it is known.
func (f *frames) number() (uint32, bool) {
	if !f.past || len(f.head) < lengthSize+numberSize {
		return 0, false
	}
	return binary.BigEndian.Uint32(f.head[lengthSize:]), true
}

// next begins with another message.
func (f *frames) next() { *f = frames{past: true} }

// pass follows a piece. It returns the number of the last message that ended in
// it and contained match.
func (f *frames) pass(piece []byte, match string) (number uint32, found bool) {
	for len(piece) > 0 {
		n, complete := f.take(piece)
		piece = piece[n:]
		if !complete {
			break
		}
		if x, ok := f.number(); ok && match != "" && bytes.Contains(f.head, []byte(match)) {
			number, found = x, true
		}
		f.next()
	}
	return number, found
}

// before is how much of a piece may pass before the message with that number
// begins, as far as that can be seen; all of it when the message is not there.
func (f *frames) before(piece []byte, number uint32) (n int64, found bool) {
	g := frames{past: f.past, head: bytes.Clone(f.head), seen: f.seen}
	begin := 0
	for at := 0; at < len(piece); {
		taken, complete := g.take(piece[at:])
		at += taken
		if x, ok := g.number(); ok && x == number {
			return int64(begin), true
		}
		if complete {
			g.next()
			begin = at
		}
	}
	return int64(len(piece)), false
}
