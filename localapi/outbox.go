package localapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
)

// maxUnsent is how many messages may wait in an outbox before no further request
// is taken. Acquires that wait at that time may add theirs.
const maxUnsent = 64

// errStalled: the client has read nothing for long, though answers were due.
var errStalled = errors.New("the client reads nothing")

// outbox sends the messages of one stream, one at a time and in their order. Who
// posts one while nobody sends becomes the sender, and sends what others post
// meanwhile, for as long as they do. So a message costs no hop to a goroutine that
// only sends, and when the client does not read, one goroutine is blocked and not
// one for each answer. Who has more to do than this one message never sends: the
// receiver has to notice that the client does not read, and the bringer of the
// news to fetch the next loss.
type outbox struct {
	send  func(*pb.SessionResponse) error
	clock lock.Clock
	run   func(func()) // starts a goroutine

	mu      sync.Mutex
	due     []letter
	first   int // in due: those before it are sent
	sending bool
	read    chan struct{} // gets a value when one of many was sent
	settled chan struct{} // not nil: closed when there is no sender
}

// letter is a message. Its times are counted when its turn has come.
type letter struct {
	a    *pb.SessionResponse
	sent chan error // gets what send returned; nil: nobody wants to know
}

func newOutbox(send func(*pb.SessionResponse) error, clock lock.Clock, run func(func())) *outbox {
	return &outbox{send: send, clock: clock, run: run, read: make(chan struct{}, 1)}
}

// post sends a message, or leaves it to who sends at the moment. That the stream
// has ended is for the receiver to learn.
func (o *outbox) post(a *pb.SessionResponse) {
	if o.put(letter{a: a}) {
		o.sendAll()
	}
}

// leave has a message sent by another goroutine, and returns at once.
func (o *outbox) leave(a *pb.SessionResponse) {
	if o.put(letter{a: a}) {
		o.run(o.sendAll)
	}
}

// deliver returns when the message was sent. Its errors: that of the stream, and
// the cause of ctx.
func (o *outbox) deliver(ctx context.Context, a *pb.SessionResponse) error {
	sent := make(chan error, 1)
	if o.put(letter{a: a, sent: sent}) {
		o.run(o.sendAll)
	}
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// put queues a message, and reports whether the caller has to see to sendAll.
func (o *outbox) put(l letter) (send bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.due = append(o.due, l)
	if o.sending {
		return false
	}
	o.sending = true
	return true
}

// sendAll sends until nothing is due.
func (o *outbox) sendAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.first < len(o.due) {
		l := o.due[o.first]
		o.mu.Unlock()
		refresh(l.a, o.clock)
		err := o.send(l.a)
		if l.sent != nil {
			l.sent <- err
		}
		o.mu.Lock()
		if len(o.due)-o.first >= maxUnsent {
			select {
			case o.read <- struct{}{}:
			default:
			}
		}
		o.due[o.first] = letter{}
		o.first++
		if o.first >= maxUnsent && 2*o.first >= len(o.due) { // a client that is always behind has something due for ever
			o.due = slices.Delete(o.due, 0, o.first)
			o.first = 0
		}
	}
	o.sending, o.due, o.first = false, o.due[:0], 0
	if cap(o.due) > 2*maxUnsent {
		o.due = nil
	}
	if o.settled != nil {
		close(o.settled)
		o.settled = nil
	}
}

// settle gives a channel that is closed when all was sent that was posted. It is
// called once.
func (o *outbox) settle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := make(chan struct{})
	if o.sending {
		o.settled = c
	} else {
		close(c)
	}
	return c
}

func (o *outbox) unsent() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.due) - o.first
}

// catchUp waits until few messages are unsent. errStalled: none was sent for as
// long as patience. Else the cause of ctx.
func (o *outbox) catchUp(ctx context.Context, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for o.unsent() >= maxUnsent {
		select {
		case <-o.read:
			timer.Reset(patience)
		case <-timer.C:
			return errStalled
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
