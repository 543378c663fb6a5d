package supervise

import (
	"slices"
	"testing"
)

// What the supervisor said last is heard also when it has ended before it read what the
// front had asked: else its end looks like a death. The kernel tells of what was not
// read before it gives what was said.
func TestTheLastWordIsHeard(t *testing.T) {
	front, fd, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer front.conn.Close()
	supervisor, err := newLink(fd)
	if err != nil {
		t.Fatal(err)
	}
	front.send(false, kindAsk, 0, "")
	supervisor.send(true, KindUntil, 1, "")
	supervisor.send(true, KindEnded, 7, "0")
	if err := supervisor.conn.Close(); err != nil {
		t.Fatal(err)
	}
	var heard []string
	front.receive(func(m Message) { heard = append(heard, m.Kind) })
	if want := []string{KindUntil, KindEnded}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}
