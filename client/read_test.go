package client_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

// reader is a session whose callers have come one at a time, so that the next one reads
// its own answer.
type reader struct {
	*hand
	s *client.Session
}

func readers(t *testing.T) *reader {
	t.Helper()
	s, h := play(t).open(client.SessionOptions{})
	client.NeverPause(s)
	t.Cleanup(func() {
		_ = h.c.Close()
		_ = s.Close()
	})
	r := &reader{h, s}
	for i := 0; !client.Free(s); i++ {
		if i > 100 {
			t.Fatal("no caller may read though they come one at a time")
		}
		r.hold("before/" + strconv.Itoa(i))
	}
	return r
}

// ask asks for a lock, and gives the id of the request.
func (r *reader) ask(ctx context.Context, resource string) (string, <-chan result[*client.Lock]) {
	r.t.Helper()
	asked := call(func() (*client.Lock, error) { return r.s.Acquire(ctx, resource, client.AcquireOptions{}) })
	return r.next().GetRequestId(), asked
}

func (r *reader) got(asked <-chan result[*client.Lock]) *client.Lock {
	r.t.Helper()
	l, err := returned(r.t, "Acquire", asked)
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *reader) hold(resource string) *client.Lock {
	r.t.Helper()
	id, asked := r.ask(r.t.Context(), resource)
	r.granted(id, resource)
	return r.got(asked)
}

// reads waits until a caller reads.
func (r *reader) reads() {
	r.t.Helper()
	eventually(r.t, "a caller reads", func() bool { return client.CallerReads(r.s) })
}

func (r *reader) lose(id string) {
	r.t.Helper()
	r.say(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: &pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{
		LockId: id, Resource: id, Reason: pb.LostReason_FORCED,
	}}}}})
}

// TestCallerReads its own answer, and all that comes before it.
func TestCallerReads(t *testing.T) {
	r := readers(t)
	a, asked := r.ask(t.Context(), "a")
	r.reads()
	b, other := r.ask(t.Context(), "b")
	r.lose("before/0")
	r.granted(b, "b")
	r.got(other)
	r.granted(a, "a")
	r.got(asked)
	eventually(t, "free", func() bool { return client.Free(r.s) })
}

// TestReaderLeavesOthers: who has its answer reads no more, and others still get theirs.
func TestReaderLeavesOthers(t *testing.T) {
	r := readers(t)
	a, asked := r.ask(t.Context(), "a")
	r.reads()
	b, other := r.ask(t.Context(), "b")
	r.granted(a, "a")
	r.got(asked)
	r.granted(b, "b")
	r.got(other)
}

// TestReaderWhoseContextEnds stops at once, in the middle of a line, too.
func TestReaderWhoseContextEnds(t *testing.T) {
	r := readers(t)
	ctx, cancel := context.WithCancel(t.Context())
	a, asked := r.ask(ctx, "a")
	r.reads()
	b, other := r.ask(t.Context(), "b")
	r.raw(`{"requestId":"` + b + `","granted":{"lockId":"b",`)
	cancel()
	if _, err := returned(t, "Acquire", asked); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if q := r.next().GetCancel(); q.GetRequestId() != a {
		t.Errorf("cancelled %v, want %s", q, a)
	}
	r.raw(fmt.Sprintf(`"resource":"b","mode":"EXCLUSIVE","fence":"7","countedAt":"%.3fs","validFor":"60s"}}`+"\n", lock.BootTime().Seconds()))
	if l := r.got(other); l.Fence != 7 {
		t.Errorf("the fence is %d", l.Fence)
	}
}

// TestClosedWhileACallerReads: the call returns though the sidecar is silent.
func TestClosedWhileACallerReads(t *testing.T) {
	r := readers(t)
	_, asked := r.ask(t.Context(), "a")
	r.reads()
	closing := call(func() (struct{}, error) { return struct{}{}, r.s.Close() })
	if _, err := returned(t, "Acquire", asked); !errors.Is(err, client.ErrSessionClosed) {
		t.Errorf("got %v", err)
	}
	r.ends()
	_ = r.c.Close()
	if _, err := returned(t, "Close", closing); err != nil {
		t.Error(err)
	}
}

// TestEndOfWhatACallerReads is the end of the session.
func TestEndOfWhatACallerReads(t *testing.T) {
	r := readers(t)
	l := r.hold("held")
	_, asked := r.ask(t.Context(), "a")
	r.reads()
	_ = r.c.Close()
	if _, err := returned(t, "Acquire", asked); !errors.Is(err, client.ErrStreamEnded) {
		t.Errorf("got %v", err)
	}
	within(t, "done", r.s.Done())
	within(t, "lost", l.Lost())
	if err := r.s.Close(); err != nil {
		t.Error(err)
	}
}

// TestListenedLoss comes at once, whoever has read before: also where the app begins to
// listen after its call, and where another call has followed.
func TestListenedLoss(t *testing.T) {
	r := readers(t)
	a, b := r.hold("a"), r.hold("b")
	lost := a.Lost()
	r.lose("a")
	within(t, "lost", lost)
	_ = b.Lost()
	c := r.hold("c")
	r.lose("b")
	within(t, "lost", b.Lost())
	r.lose("c")
	within(t, "lost", c.Lost())
}

// TestCallersReadAgain when nobody listens any more.
func TestCallersReadAgain(t *testing.T) {
	r := readers(t)
	_ = r.hold("lost").Lost()
	r.lose("lost")
	l := r.hold("released")
	lost := l.Lost()
	// Where callers come without a pause, the receiver finds one of them reading each time, for as long as it gets no processor in between.
	// They read all that comes, so it need not be soon.
	eventually(t, "read by the receiver, though somebody listens", func() bool {
		if client.Free(r.s) {
			r.hold("other")
		}
		return !client.Free(r.s)
	})
	released := call(func() (struct{}, error) { return struct{}{}, l.Release(t.Context()) })
	r.say(&pb.SessionResponse{RequestId: r.next().GetRequestId(), Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{}}})
	if _, err := returned(t, "Release", released); err != nil {
		t.Error(err)
	}
	for i := 0; !client.Free(r.s); i++ {
		if i > 100 {
			t.Fatal("no caller may read though nobody listens")
		}
		r.hold("after")
	}
	select {
	case <-lost:
		t.Error("lost though it was released")
	default:
	}
}

// TestNewsBetweenCalls come to those who do not listen, too; and a caller that waits for
// long costs no more looks.
func TestNewsBetweenCalls(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{})
	r := &reader{h, s}
	eventually(t, "a caller reads", func() bool {
		id, asked := r.ask(t.Context(), "a")
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end) && !client.CallerReads(s); {
			time.Sleep(time.Millisecond)
		}
		reads := client.CallerReads(s)
		if reads {
			eventually(t, "the receiver looks no more", func() bool { return client.Waits(s) })
		}
		r.granted(id, "a")
		r.got(asked)
		return reads
	})
	l := r.hold("l")
	r.lose("l")
	eventually(t, "lost", func() bool { return errors.Is(l.Err(), client.ErrLockLost) })
}

// TestManyReaders: callers that come and leave as they like exclude each other, and nobody
// is forgotten.
func TestManyReaders(t *testing.T) {
	s := start(t).open(t, client.SessionOptions{})
	var wg sync.WaitGroup
	var inside [3]int // guarded by the locks
	for n := range 6 {
		wg.Go(func() {
			for i := range 60 {
				on := (i + n) % len(inside)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%5)*time.Millisecond)
				l, err := s.Acquire(ctx, strconv.Itoa(on), client.AcquireOptions{})
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if inside[on]++; inside[on] != 1 {
					t.Error("broken law: two callers hold a lock")
				}
				inside[on]--
				if i%10 == 0 {
					_ = l.Lost()
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "answered", func() bool { return client.Calls(s) == 0 })
}
