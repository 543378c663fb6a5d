package localapi

import (
	"context"
	"errors"
	"runtime"
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

// stallSteps is in how many steps the time is counted that a client has. A sidecar that stands still itself, for however
// long, counts that as one: when it goes on, it first finds out what its clients have read meanwhile.
const stallSteps = 10

// countdown calls a function when a time is over that is counted in stallSteps, unless it is stopped before.
type countdown struct {
	mu    sync.Mutex
	timer *time.Timer
	left  int // steps
}

func newCountdown(d time.Duration, f func()) *countdown {
	c := &countdown{left: stallSteps}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(d/stallSteps, func() {
		if c.step(d / stallSteps) {
			f()
		}
	})
	return c
}

// step reports whether it was the last.
func (c *countdown) step(next time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 { // stopped
		return false
	}
	if c.left--; c.left > 0 {
		c.timer.Reset(next)
	}
	return c.left == 0
}

func (c *countdown) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = 0
	c.timer.Stop()
}

// outbox sends the messages of one stream, in their order and by one goroutine at a
// time. Who posts one while nobody sends becomes the sender, and sends what others post
// meanwhile, for as long as they do. So a message costs no hop to a goroutine that
// only sends, and when the client does not read, one goroutine is blocked and not
// one for each answer. Who has more to do than this one message never waits for the
// client: the receiver has to notice that the client does not read, and the bringer of
// the news to fetch the next loss.
//
// A receiver that carries out requests itself holds the outbox while it does: what is
// posted meanwhile goes out together, by flush.
type outbox struct {
	// send sends messages. Where it may not wait and the client does not read, it gives
	// errBlocked: it goes on with the same ones when it is called with none.
	send  func(batch []*pb.SessionResponse, wait bool) error
	most  int // how many messages go out together
	clock lock.Clock
	run   func(func()) // starts a goroutine

	batch []*pb.SessionResponse // the sender's

	mu      sync.Mutex
	due     []letter
	first   int // in due: those before it are sent
	sending bool
	held    bool          // flush will follow
	read    chan struct{} // gets a value when some of many was sent
	settled chan struct{} // not nil: closed when there is no sender
}

// errBlocked: the client has not read enough to be sent more.
var errBlocked = errors.New("the client has to read first")

// letter is a message. Its times are counted when its turn has come.
type letter struct {
	a    *pb.SessionResponse
	sent chan error // gets what send returned; nil: nobody wants to know
}

func newOutbox(send func([]*pb.SessionResponse, bool) error, most int, clock lock.Clock, run func(func())) *outbox {
	return &outbox{send: send, most: most, clock: clock, run: run, read: make(chan struct{}, 1)}
}

// post sends a message, or leaves it to who sends at the moment. That the stream
// has ended is for the receiver to learn.
func (o *outbox) post(a *pb.SessionResponse) {
	if o.put(letter{a: a}) {
		o.sendAll(true)
	}
}

// share is post where others may be about to post: what was asked for in one trip to the store is answered at the same
// time, and goes out together. So it lets others run first.
func (o *outbox) share(a *pb.SessionResponse) {
	if o.put(letter{a: a}) {
		runtime.Gosched()
		o.sendAll(true)
	}
}

// leave has a message sent by another goroutine, and returns at once.
func (o *outbox) leave(a *pb.SessionResponse) {
	if o.put(letter{a: a}) {
		o.run(func() { o.sendAll(true) })
	}
}

// deliver returns when the message was sent. Its errors: that of the stream, and
// the cause of ctx.
func (o *outbox) deliver(ctx context.Context, a *pb.SessionResponse) error {
	sent := make(chan error, 1)
	if o.put(letter{a: a, sent: sent}) {
		o.run(func() { o.sendAll(true) })
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
	if o.sending || o.held {
		return false
	}
	o.sending = true
	return true
}

// hold leaves to flush what is posted from now on.
func (o *outbox) hold() {
	o.mu.Lock()
	o.held = true
	o.mu.Unlock()
}

// flush ends what hold began, and sends what is due as far as the client reads; another
// goroutine goes on with the rest.
func (o *outbox) flush() {
	o.mu.Lock()
	o.held = false
	send := len(o.due) > o.first && !o.sending
	o.sending = o.sending || send
	o.mu.Unlock()
	if send {
		o.sendAll(false)
	}
}

// sendAll sends until nothing is due. Where it may not wait for the client, and has to,
// another goroutine goes on.
func (o *outbox) sendAll(wait bool) {
	for {
		n := o.next()
		if n == 0 {
			return
		}
		err := o.send(o.batch, wait)
		if errors.Is(err, errBlocked) {
			o.run(func() {
				o.done(n, o.send(nil, true))
				o.sendAll(true)
			})
			return
		}
		o.done(n, err)
	}
}

// next takes what is to be sent together. 0: there is nothing, and no sender any more.
func (o *outbox) next() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	due := o.due[o.first:]
	due = due[:min(len(due), o.most)]
	o.batch = o.batch[:0]
	for _, l := range due {
		o.batch = append(o.batch, l.a)
	}
	if len(due) > 0 {
		refresh(o.batch, o.clock)
		return len(due)
	}
	clear(o.batch[:cap(o.batch)])
	o.sending, o.due, o.first = false, o.due[:0], 0
	if cap(o.due) > 2*maxUnsent {
		o.due = nil
	}
	if o.settled != nil {
		close(o.settled)
		o.settled = nil
	}
	return 0
}

// done notes that the first n messages were sent.
func (o *outbox) done(n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.due)-o.first >= maxUnsent {
		o.progress()
	}
	for i := range n {
		if l := o.due[o.first+i]; l.sent != nil {
			l.sent <- err
		}
		o.due[o.first+i] = letter{}
	}
	o.first += n
	if o.first >= maxUnsent && 2*o.first >= len(o.due) { // a client that is always behind has something due for ever
		o.due = slices.Delete(o.due, 0, o.first)
		o.first = 0
	}
}

// progress says that the client reads.
func (o *outbox) progress() {
	select {
	case o.read <- struct{}{}:
	default:
	}
}

// settle gives a channel that is closed when all was sent that was posted. It is
// called once.
func (o *outbox) settle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := make(chan struct{})
	if o.sending || len(o.due) > o.first { // held
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
// long as patience, counted in stallSteps. Else the cause of ctx.
func (o *outbox) catchUp(ctx context.Context, patience time.Duration) error {
	every := max(patience/stallSteps, 1)
	step := time.NewTicker(every)
	defer step.Stop()
	for left := stallSteps; o.unsent() >= maxUnsent; {
		select {
		case <-o.read:
			left = stallSteps
			step.Reset(every)
		case <-step.C:
			if left--; left == 0 {
				return errStalled
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
