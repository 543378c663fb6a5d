package localapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// spans notes each span as "name resource in trace: how it ended".
type spans struct {
	mu  sync.Mutex
	all []string
}

type traceKey struct{}

func (x *spans) Continue(ctx context.Context, header func(string) string) context.Context {
	if header("other") != "" {
		x.note("a header that nobody has sent")
	}
	if p := header("traceparent"); p != "" {
		return context.WithValue(ctx, traceKey{}, p)
	}
	return ctx
}

func (x *spans) note(text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, text)
}

// taken gives what was noted since it was called before.
func (x *spans) taken() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() { x.all = nil }()
	return x.all
}

func (x *spans) Call(ctx context.Context, name, resource string) (context.Context, func(error)) {
	return ctx, func(err error) { x.note(span(ctx, name, resource, err == nil)) }
}

func (x *spans) Acquire(ctx context.Context, r session.AcquireRequest) (context.Context, func(session.Grant, error)) {
	return ctx, func(g session.Grant, err error) {
		x.note(span(ctx, "acquire", r.Resource, err == nil && g.LockID != ""))
	}
}

func span(ctx context.Context, name, resource string, ok bool) string {
	parent, _ := ctx.Value(traceKey{}).(string)
	end := "failed"
	if ok {
		end = "done"
	}
	return strings.TrimSpace(strings.Join([]string{name, resource, "in", parent}, " ")) + ": " + end
}

// TestSpans: each call that asks the store has one, in the trace that the app names, and
// each acquire, whichever way it comes.
func TestSpans(t *testing.T) {
	x := &spans{}
	s := start(t, func(_ *session.Options, o *Options) { o.Tracer = x })
	spans := func(want ...string) {
		t.Helper()
		var got []string
		eventually(t, "traced", func() bool { // a span may end behind the answer
			got = append(got, x.taken()...)
			return len(got) >= len(want)
		})
		slices.Sort(got)
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	t.Run("gRPC", func(t *testing.T) {
		c := s.api(t)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "A")
		_, _ = c.GetLock(ctx, &pb.GetLockRequest{Resource: "r"})
		_, _ = c.ListLocks(ctx, &pb.ListLocksRequest{})
		_, _ = c.ForceRelease(ctx, &pb.ForceReleaseRequest{Resource: "r", LockId: "none"})
		_, _ = c.GetLock(t.Context(), &pb.GetLockRequest{Resource: "s"})
		spans("get r in A: done", "list  in A: done", "force-release r in A: failed", "get s in: done")
		o, err := c.OpenSession(ctx, &pb.OpenSessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		g, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: o.GetSessionId(), Resource: "r"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Hold(ctx, tryOnce("r")); err != nil {
			t.Fatal(err)
		}
		other, err := c.OpenSession(ctx, &pb.OpenSessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		q := tryOnce("r")
		q.SessionId = other.GetSessionId()
		if _, err := c.Acquire(ctx, q); reasonOf(t, err) != reasonHeld {
			t.Errorf("beside it: %v", err)
		}
		spans("acquire r in A: done", "acquire r in A: failed", "acquire r in A: failed")
		_, _ = c.Downgrade(ctx, &pb.DowngradeRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()})
		_, _ = c.Release(ctx, &pb.ReleaseRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()})
		_, _ = c.Release(ctx, &pb.ReleaseRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()})
		spans("downgrade  in A: done", "release  in A: done", "release  in A: failed")
		held, cancel := context.WithCancel(ctx)
		defer cancel()
		h, err := c.Hold(held, &pb.AcquireRequest{Resource: "h"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Recv(); err != nil {
			t.Fatal(err)
		}
		spans("acquire h in A: done")
	})
	t.Run("HTTP", func(t *testing.T) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/v1/locks/r", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("traceparent", "B")
		a, err := s.http(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		spans("get r in B: done")
	})
	overEachWire(t, func(t *testing.T, w wireName) {
		y := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
		y.acquire("1", &pb.AcquireRequest{Resource: string(w)})
		g := y.answer("1").GetGranted()
		y.send(&pb.SessionRequest{RequestId: "2", Traceparent: "C", Request: &pb.SessionRequest_Acquire{Acquire: tryOnce(string(w))}})
		y.answer("2")
		y.send(&pb.SessionRequest{RequestId: "3", Traceparent: "D", Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: g.GetLockId()}}})
		y.answer("3")
		name := string(w)
		spans("acquire "+name+" in: done", "acquire "+name+" in C: failed", "release  in D: done")
	})
	t.Run("the trace of open", func(t *testing.T) {
		y := s.says(t, `{"requestId":"o","open":{},"traceparent":"E"}`+"\n"+`{"requestId":"1","acquire":{"resource":"e"}}`+"\n"+
			`{"requestId":"2","acquire":{"resource":"f"},"traceparent":"F"}`+"\n")
		for range 3 {
			y.answer()
		}
		spans("acquire e in E: done", "acquire f in F: done")
	})
	t.Run("without a tracer", func(t *testing.T) {
		y := start(t).says(t, `{"requestId":"1","getLock":{"resource":"r"},"traceparent":"G"}`+"\n")
		if a := y.answer(); a.GetLock() == nil {
			t.Errorf("%v", a)
		}
	})
	t.Run("looks", func(t *testing.T) {
		y := s.says(t, `{"requestId":"1","getLock":{"resource":"r"},"traceparent":"G"}`+"\n"+`{"requestId":"2","getLock":{"resource":"s"}}`+"\n")
		y.answer()
		y.answer()
		spans("get r in G: done", "get s in: done")
	})
}
