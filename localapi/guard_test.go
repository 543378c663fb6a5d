package localapi

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// wishful is a store that notes what guard its requests want.
type wishful struct {
	lock.Backend
	mu     sync.Mutex
	wishes map[lock.Resource]lock.GuardWish
}

func (b *wishful) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &wishfulLease{Lease: l, b: b}, err
}

type wishfulLease struct {
	lock.Lease
	b *wishful
}

func (l *wishfulLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	l.b.mu.Lock()
	l.b.wishes[q.Resource] = q.Guard
	l.b.mu.Unlock()
	return l.Lease.Acquire(ctx, q)
}

// TestGuardWishReachesTheStore: whether a request wants a guard, over gRPC, HTTP and lines.
func TestGuardWishReachesTheStore(t *testing.T) {
	for _, over := range []string{"gRPC", "lines", "HTTP"} {
		t.Run(over, func(t *testing.T) {
			b := &wishful{wishes: make(map[lock.Resource]lock.GuardWish)}
			s := start(t, noNews, func(o *session.Options, _ *Options) {
				b.Backend = o.Backend
				o.Backend = b
			})
			var a app
			if over == "HTTP" {
				a = s.httpApp(t, "a")
			} else {
				a = s.stream(t, s.streams(t, wireName(over)), &pb.OpenSessionRequest{Name: "a"})
			}
			for name, c := range map[string]struct {
				guard *bool
				want  lock.GuardWish
			}{
				"usual": {nil, lock.UsualGuard}, "with": {proto.Bool(true), lock.WithGuard}, "without": {proto.Bool(false), lock.WithoutGuard},
			} {
				q := &pb.AcquireRequest{Resource: name, Guard: c.guard}
				if g := a.ask(&pb.SessionRequest{RequestId: name, Request: &pb.SessionRequest_Acquire{Acquire: q}}); g.GetGranted() == nil {
					t.Fatalf("%v", g)
				}
				b.mu.Lock()
				if got, was := b.wishes[lock.Resource(name)]; !was || got != c.want {
					t.Errorf("%s: the store was asked for %d, want %d", name, got, c.want)
				}
				b.mu.Unlock()
			}
		})
	}
}
