package faultproxy

import "bytes"

// Framing tells where the messages of a protocol end, and which answer belongs to which
// request, by a number that both have. The first message of each direction, in which
// client and server agree, has none.
type Framing struct {
	// LengthSize is how many bytes of a message must be there to tell how long it is.
	LengthSize int
	// Length gives the length of a whole message from its first LengthSize bytes.
	Length func(head []byte) int64
	// Number gives the number of a message from the bytes that are there so far; false:
	// they are too few.
	Number func(head []byte) (uint32, bool)
}

// frames follows one direction of a connection.
type frames struct {
	framing *Framing
	past    bool   // the first message has passed
	head    []byte // the beginning of the message that is on its way, with its length
	seen    int    // how much of it has passed
}

// maxFrameHead is how much of a message is kept to find a word in it.
const maxFrameHead = 64 << 10

// take follows a piece to the end of the message, and no further. It returns
// how much that was and whether the message is complete now.
func (f *frames) take(piece []byte) (n int, complete bool) {
	size := f.framing.LengthSize
	n = min(len(piece), max(0, size-f.seen))
	if f.seen+n >= size {
		head := append(bytes.Clone(f.head[:min(len(f.head), size)]), piece[:n]...)
		length := f.framing.Length(head)
		n = int(min(int64(len(piece)), length-int64(f.seen)))
		complete = int64(f.seen+n) == length
	}
	f.seen += n
	f.head = append(f.head, piece[:min(n, maxFrameHead-len(f.head))]...)
	return n, complete
}

// number is that of the message that is on its way, as far as it is known.
func (f *frames) number() (uint32, bool) {
	if !f.past {
		return 0, false
	}
	return f.framing.Number(f.head)
}

// next begins with another message.
func (f *frames) next() { *f = frames{framing: f.framing, past: true} }

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
	g := frames{framing: f.framing, past: f.past, head: bytes.Clone(f.head), seen: f.seen}
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
