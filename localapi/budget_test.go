package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// TestUnreadBudget: what a connection and a user may leave unread. Who has nothing unread
// gets any answer, however large.
func TestUnreadBudget(t *testing.T) {
	u := newUnread()
	of := func(uid uint32) *conn { return &conn{peer: &peercred.Peer{UID: uid}} }
	refused := func(c *conn, size int, limit string, most int) {
		t.Helper()
		var l *session.LimitError
		if err := u.take(c, size); !errors.As(err, &l) || l.Limit != limit || l.Max != most {
			t.Errorf("take %d: %v, want %s %d", size, err, limit, most)
		}
	}
	take := func(c *conn, size int) {
		t.Helper()
		if err := u.take(c, size); err != nil {
			t.Error(err)
		}
	}
	a := of(1)
	take(a, maxUnread-1)
	take(a, 1)
	refused(a, 1, "bytes of unread answers", maxUnread)
	for range 3 {
		take(of(1), maxUnread)
	}
	refused(of(1), 1, "bytes of unread answers of one user", maxUnreadUser)
	take(of(2), 2*maxUnreadUser)
	u.forget(a)
	take(of(1), maxUnread-1)
	b := of(1)
	take(b, 1)
	refused(b, 1, "bytes of unread answers of one user", maxUnreadUser)
	c := of(3)
	take(c, 2*maxUnread)
	refused(c, 1, "bytes of unread answers", maxUnread)
	u.owes(c, -2*maxUnread)
	if _, there := u.taken[c.shares()[0]]; there {
		t.Error("who owes nothing is kept")
	}
	take(c, 5)
}

// TestLargeAnswersAreOwed: from a size on an answer is counted, until gRPC says that it
// was written; if that takes too long, the connection ends.
func TestLargeAnswersAreOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Limits: Limits{Stall: time.Minute}})
		c := &conn{peer: &peercred.Peer{UID: 1}, places: s.places, counted: s.unread}
		sized := func(n int) *pb.Lock {
			l := &pb.Lock{Resource: "r"}
			for proto.Size(l) < n {
				l.Resource += "x"
			}
			return l
		}
		small := sized(smallAnswer - 1)
		if got, err := s.owe(c, small); got != any(small) || err != nil || c.unread != 0 {
			t.Errorf("%v, %d bytes are counted", err, c.unread)
		}
		large := sized(smallAnswer)
		got, err := s.owe(c, large)
		o, ok := got.(*owed)
		if err != nil || !ok || c.unread != smallAnswer {
			t.Fatalf("%v %v, %d bytes are counted", got, err, c.unread)
		}
		b, err := newCodec().Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var back pb.Lock
		if err := proto.Unmarshal(b.Materialize(), &back); err != nil || !proto.Equal(&back, large) {
			t.Errorf("%v", err)
		}
		b.Free() // as gRPC does
		if c.unread != 0 || len(s.unread.taken) != 0 {
			t.Errorf("%d bytes are counted when it was written", c.unread)
		}
		time.Sleep(2 * time.Minute) // it is not cut off any more: that would panic here
		if got, err := s.owe(c, "no message"); got != any("no message") || err != nil {
			t.Errorf("%v %v", got, err)
		}
		bad := sized(smallAnswer)
		bad.Holders = []*pb.Holder{{Sidecar: "\xff"}}
		got, err = s.owe(c, bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newCodec().Marshal(got); err == nil {
			t.Error("what is not UTF-8 was marshalled")
		}
		if c.unread != 0 {
			t.Errorf("%d bytes of it are counted", c.unread)
		}
		c.unread = maxUnread
		if _, err := s.owe(c, large); err == nil {
			t.Error("too much is owed")
		}
	})
}

// TestPlacesOfTheGone: a connection that has ended makes room for nobody, and is in no list.
func TestPlacesOfTheGone(t *testing.T) {
	p := newPlaces(8, each(2, 0, 0))
	p.firstWord = 0
	of := func(uid uint32) *conn { return &conn{peer: &peercred.Peer{UID: uid}} }
	admit := func(c *conn) *conn {
		t.Helper()
		evicted, err := p.admit(c)
		if err != nil {
			t.Fatal(err)
		}
		return evicted
	}
	a, b, c := of(1), of(1), of(1)
	admit(a)
	admit(b)
	p.free(a)
	p.free(a) // its Close comes twice
	if admit(c) != nil || p.count() != 2 {
		t.Error("somebody made room though there was some")
	}
	if admit(of(1)) != b {
		t.Error("not the longest idle made room")
	}
	p.enter(c)
	p.enter(c) // two calls
	p.leave(c)
	d := of(1)
	if got := admit(d); got == c {
		t.Error("one that is in use made room")
	}
	p.leave(c)
	p.enter(d)
	if got := admit(of(1)); got != c {
		t.Error("the one that is idle again made no room")
	}
}

// TestSilentAndIdle: whether a connection has said anything does not count, once it had the
// time to, but for how long it has been idle.
func TestSilentAndIdle(t *testing.T) {
	for name, x := range map[string]struct{ spoke [2]bool }{
		"both silent": {}, "the first spoke": {[2]bool{true, false}}, "the second spoke": {[2]bool{false, true}}, "both spoke": {[2]bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(8, each(2, 0, 0))
			p.firstWord = 0
			var all [2]*conn
			for i := range all {
				all[i] = &conn{peer: &peercred.Peer{UID: 1}}
				if _, err := p.admit(all[i]); err != nil {
					t.Fatal(err)
				}
				if x.spoke[i] {
					p.enter(all[i])
					p.leave(all[i])
				}
			}
			if got, err := p.admit(&conn{peer: &peercred.Peer{UID: 1}}); got != all[0] || err != nil {
				t.Errorf("not the first makes room: %v", err)
			}
		})
	}
}

// TestWhoMakesRoomForWhom: of several users those who have the most, and nobody who has
// less than who comes. Each user's first connection has places of its own.
func TestWhoMakesRoomForWhom(t *testing.T) {
	for name, x := range map[string]struct {
		has  map[uint32]int // idle connections
		busy map[uint32]int
		uid  uint32 // who comes
		from uint32 // who makes room; 0: nobody has to
		bad  bool
	}{
		"there is room":               {map[uint32]int{1: 4}, nil, 2, 0, false},
		"one more than who comes":     {map[uint32]int{1: 3}, map[uint32]int{2: 2}, 2, 1, false},
		"one fewer than who comes":    {map[uint32]int{1: 2}, map[uint32]int{2: 3}, 2, 0, true},
		"as many as who comes":        {map[uint32]int{1: 2}, map[uint32]int{2: 2, 3: 1}, 2, 1, false},
		"more than who comes":         {map[uint32]int{1: 4}, map[uint32]int{2: 1}, 2, 1, false},
		"fewer than who comes":        {map[uint32]int{1: 1}, map[uint32]int{2: 4}, 2, 0, true},
		"the first has most":          {map[uint32]int{1: 4, 3: 1}, nil, 2, 1, false},
		"who has most is busy":        {map[uint32]int{3: 1}, map[uint32]int{1: 4}, 2, 3, false},
		"all are busy":                {nil, map[uint32]int{1: 5}, 2, 0, true},
		"its own, where it has least": {map[uint32]int{2: 2}, map[uint32]int{1: 3}, 2, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(5, each(5, 0, 0))
			p.firstWord = 0
			for uid, n := range x.has {
				for range n {
					if _, err := p.admit(&conn{peer: &peercred.Peer{UID: uid}}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for uid, n := range x.busy {
				for range n {
					c := &conn{peer: &peercred.Peer{UID: uid}}
					if _, err := p.admit(c); err != nil {
						t.Fatal(err)
					}
					p.enter(c)
				}
			}
			evicted, err := p.admit(&conn{peer: &peercred.Peer{UID: x.uid}})
			var from uint32
			if evicted != nil {
				from = evicted.peer.UID
			}
			if from != x.from || (err != nil) != x.bad {
				t.Errorf("%d makes room (%v), want %d", from, err, x.from)
			}
			if n := p.count(); n > 5 {
				t.Errorf("%d places are taken", n)
			}
		})
	}
	if r := newPlaces(160, each(160, 0, 0)).reserve; r != 10 {
		t.Errorf("%d of 160 places are reserved", r)
	}
}

// TestOutboxEnds: who delivers is told how it went, and what was posted after the client
// has gone keeps nobody waiting.
func TestOutboxEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox(func([]*pb.SessionResponse, bool) error { return io.EOF }, 1, func() time.Duration { return 0 }, spawn)
		if err := o.deliver(t.Context(), numbered(1)); !errors.Is(err, io.EOF) {
			t.Errorf("delivered: %v", err)
		}
		<-o.settle()
		o.post(numbered(2))
		<-o.settle()
	})
}

// TestOutboxHeld: what is posted meanwhile goes out together, at the flush.
func TestOutboxHeld(t *testing.T) {
	var batches []int
	var waits []bool
	blocked := false
	o := newOutbox(func(b []*pb.SessionResponse, wait bool) error {
		batches, waits = append(batches, len(b)), append(waits, wait)
		if blocked && !wait {
			return errBlocked
		}
		return nil
	}, 4, func() time.Duration { return 0 }, func(f func()) { f() })
	o.hold()
	for n := range 6 {
		o.post(numbered(n))
	}
	o.leave(numbered(6))
	settled := o.settle()
	select {
	case <-settled:
		t.Error("it is settled with 7 messages due")
	default:
	}
	if len(batches) != 0 || o.unsent() != 7 {
		t.Errorf("sent %v, %d are due", batches, o.unsent())
	}
	o.flush()
	o.flush() // there is nothing
	<-settled
	if len(batches) != 2 || batches[0] != 4 || batches[1] != 3 || o.unsent() != 0 {
		t.Errorf("sent %v, %d are due", batches, o.unsent())
	}
	o.post(numbered(7)) // is sent at once
	if len(batches) != 3 {
		t.Errorf("sent %v", batches)
	}
	blocked = true
	o.hold()
	for n := range 6 {
		o.post(numbered(n))
	}
	o.flush() // another goroutine goes on with what was started, and with the rest: here the same one
	if got := fmt.Sprint(batches[3:], waits[3:]); got != "[4 0 2] [false true true]" || o.unsent() != 0 {
		t.Errorf("sent %v, %d are due", got, o.unsent())
	}
}

// TestOneSends: while somebody sends, nobody else does, whatever is posted meanwhile.
func TestOneSends(t *testing.T) {
	for name, begin := range map[string]func(*outbox){
		"post":  func(o *outbox) { o.post(numbered(0)) },
		"leave": func(o *outbox) { o.leave(numbered(0)) },
		"flush": func(o *outbox) {
			o.hold()
			o.post(numbered(0))
			o.flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var o *outbox
			var got []string
			sending := false
			o = newOutbox(func(b []*pb.SessionResponse, _ bool) error {
				if sending {
					t.Error("two send")
				}
				sending = true
				for _, a := range b {
					got = append(got, a.GetRequestId())
				}
				if len(got) == 1 {
					o.hold()
					o.post(numbered(1))
					o.flush()
					o.post(numbered(2))
					o.leave(numbered(3))
				}
				sending = false
				return nil
			}, 1, func() time.Duration { return 0 }, func(f func()) { f() })
			begin(o)
			if fmt.Sprint(got) != "[0 1 2 3]" {
				t.Errorf("sent %v", got)
			}
		})
	}
}

// TestOutboxForgets: what was sent is not kept.
func TestOutboxForgets(t *testing.T) {
	o := newOutbox(func([]*pb.SessionResponse, bool) error { return nil }, 4, func() time.Duration { return 0 }, func(f func()) { f() })
	o.hold()
	for n := range maxUnsent / 2 {
		o.post(numbered(n))
	}
	o.flush()
	for i, a := range o.batch[:cap(o.batch)] {
		if a != nil {
			t.Errorf("message %d of the batch is kept", i)
		}
	}
	for i, l := range o.due[:cap(o.due)] {
		if l.a != nil {
			t.Errorf("message %d is kept", i)
		}
	}
}

// TestOutboxTellsProgress: who waits to go on learns that the client reads as long as
// many messages are due.
func TestOutboxTellsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{reads: make(chan struct{})}
		o := newOutbox(g.send, 1, func() time.Duration { return 0 }, spawn)
		for n := range maxUnsent + 1 {
			o.leave(numbered(n))
		}
		caught := make(chan error, 1)
		go func() { caught <- o.catchUp(t.Context(), time.Minute) }()
		synctest.Wait()
		for left := maxUnsent; left >= maxUnsent-1; left-- {
			select {
			case err := <-caught:
				t.Fatalf("with %d due it goes on: %v", left+1, err)
			default:
			}
			g.reads <- struct{}{}
			synctest.Wait()
		}
		if err := <-caught; err != nil {
			t.Error(err)
		}
		for range maxUnsent - 1 {
			g.reads <- struct{}{}
		}
		<-o.settle()
		if err := o.catchUp(context.Background(), 0); err != nil {
			t.Errorf("nothing is due: %v", err)
		}
	})
}
