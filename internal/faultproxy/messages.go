package faultproxy

import "net"

// Message is a whole message on its way.
type Message struct {
	Direction Direction
	First     bool   // of its connection and direction
	Bytes     []byte // with its length; not to be changed or kept
}

// Verdict is what becomes of a message.
type Verdict int

// The verdicts.
const (
	// Pass lets it pass.
	Pass Verdict = iota
	// Drop loses it. The connection goes on.
	Drop
	// CutAfter lets it pass, and severs the connection before an answer can.
	CutAfter
	// CutBefore severs the connection in its place.
	CutBefore
)

// messages puts together what arrives in pieces.
type messages struct {
	framing *Framing
	kept    []byte // the beginning of a message that is not complete
	past    bool   // the first message was complete
}

// add takes a piece and calls f with each message that is complete now, until f returns false.
func (m *messages) add(piece []byte, f func(message []byte, first bool) bool) bool {
	m.kept = append(m.kept, piece...)
	rest := m.kept
	for len(rest) >= m.framing.LengthSize {
		n := m.framing.Length(rest[:m.framing.LengthSize])
		if int64(len(rest)) < n {
			break
		}
		first := !m.past
		m.past = true
		if !f(rest[:n], first) {
			return false
		}
		rest = rest[n:]
	}
	m.kept = append(m.kept[:0], rest...)
	return true
}

// judged forwards what arrives message by message, as the proxy's judge says. It is false when the link is to
// be severed.
func (l *link) judged(d Direction, dst net.Conn, message []byte, first bool) bool {
	if d == ToClient && l.isCut() { // the server may be faster than the end of the connection
		return true
	}
	switch l.p.judge(Message{Direction: d, First: first, Bytes: message}) {
	case Drop:
		return true
	case CutBefore:
		return false
	case CutAfter:
		l.cutNow()
		l.forward(d, dst, message)
		return false
	default:
		return l.forward(d, dst, message)
	}
}

// cutNow lets no more answers pass.
func (l *link) cutNow() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.cut = true
}

func (l *link) isCut() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.cut
}
