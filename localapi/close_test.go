package localapi

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// slowToRelease is a store that takes its time to let go.
type slowToRelease struct {
	lock.Backend
	released atomic.Int32
}

func (b *slowToRelease) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &slowToReleaseLease{Lease: l, b: b}, err
}

type slowToReleaseLease struct {
	lock.Lease
	b *slowToRelease
}

func (l *slowToReleaseLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	time.Sleep(20 * time.Millisecond)
	l.b.released.Add(1)
	return l.Lease.Release(ctx, r, id)
}

// TestTheEndComesAfterTheRelease: a client that ends its half of a stream and reads on
// to the end finds that its locks are free then.
func TestTheEndComesAfterTheRelease(t *testing.T) {
	overEachWire(t, func(t *testing.T, w wireName) {
		b := &slowToRelease{}
		s := start(t, func(o *session.Options, _ *Options) { b.Backend, o.Backend = o.Backend, b })
		c := s.streams(t, w)
		for i := range 10 {
			x := s.stream(t, c, &pb.OpenSessionRequest{})
			x.acquire("1", &pb.AcquireRequest{Resource: strconv.Itoa(i)})
			x.answer("1")
			if err := x.CloseSend(); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); err == nil; {
				if _, err = x.Recv(); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
			}
			if n := b.released.Load(); n != int32(i+1) {
				t.Fatalf("the stream of session %d has ended, and %d locks are released", i+1, n)
			}
		}
	})
}
