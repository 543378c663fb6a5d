package telemetry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/lock"
)

// Attributes of spans.
const (
	attrResource = attribute.Key("locksidecar.resource")
	attrMode     = attribute.Key("locksidecar.mode")
	attrResult   = attribute.Key("locksidecar.result")
	attrWait     = attribute.Key("locksidecar.wait_seconds") // absent: without a limit
	attrFence    = attribute.Key("locksidecar.fence")
	attrCount    = attribute.Key("locksidecar.count")
	attrTry      = attribute.Key("locksidecar.try")
	attrPrefix   = attribute.Key("locksidecar.prefix")
)

// finish ends a span. A lock that somebody else has is a result and no error.
func finish(span trace.Span, err error) {
	switch {
	case err == nil:
		span.SetAttributes(attrResult.String("ok"))
	case errors.Is(err, lock.ErrHeld):
		span.SetAttributes(attrResult.String("held"))
	case errors.Is(err, lock.ErrNotHolder):
		span.SetAttributes(attrResult.String("not_holder"))
	case refused(err), errors.Is(err, lock.ErrInvalid):
		span.SetAttributes(attrResult.String("refused"))
	case errors.Is(err, context.Canceled):
		span.SetAttributes(attrResult.String("cancelled"))
	case errors.Is(err, context.DeadlineExceeded):
		span.SetAttributes(attrResult.String("timed_out"))
	default:
		span.SetAttributes(attrResult.String("failed"))
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// Backend puts a span around everything that b is asked for. Heartbeats have
// one only when they fail: nobody looks for the others.
func (t *Tracing) Backend(b lock.Backend) lock.Backend { return &tracedBackend{Backend: b, t: t} }

func (t *Tracing) client(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

type tracedBackend struct {
	lock.Backend
	t *Tracing
}

// Unwrap gives the Backend behind it, for lock.RecordsOf and lock.HandlesOf: these have no spans.
func (b *tracedBackend) Unwrap() lock.Backend { return b.Backend }

func (b *tracedBackend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	ctx, span := b.t.client(ctx, "store open-lease")
	l, err := b.Backend.OpenLease(ctx, o)
	finish(span, err)
	if err != nil {
		return nil, err
	}
	return &tracedLease{Lease: l, t: b.t}, nil
}

func (b *tracedBackend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	ctx, span := b.t.client(ctx, "store get", attrResource.String(string(r)))
	s, err := b.Backend.Get(ctx, r)
	finish(span, err)
	return s, err
}

func (b *tracedBackend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	ctx, span := b.t.client(ctx, "store list", attrPrefix.String(prefix))
	s, err := b.Backend.List(ctx, prefix, p)
	finish(span, err)
	return s, err
}

func (b *tracedBackend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	ctx, span := b.t.client(ctx, "store force-release", attrResource.String(string(r)))
	err := b.Backend.ForceRelease(ctx, r, id, grace)
	finish(span, err)
	return err
}

type tracedLease struct {
	lock.Lease
	t     *Tracing
	waits sync.Map // of the spans of requests that wait, by their ids
}

// TellsBlocking implements lock.Prompt.
func (l *tracedLease) TellsBlocking() bool { return lock.TellsBlocking(l.Lease) }

// IsNear implements lock.Near.
func (l *tracedLease) IsNear() bool { return lock.IsNear(l.Lease) }

// TellsContended implements lock.Contender.
func (l *tracedLease) TellsContended() bool { return lock.TellsContended(l.Lease) }

// Guards implements lock.Contender.
func (l *tracedLease) Guards(q lock.Request) bool {
	c, ok := l.Lease.(lock.Contender)
	return ok && c.Guards(q)
}

// TellingCosts implements lock.Contender.
func (l *tracedLease) TellingCosts() bool {
	c, ok := l.Lease.(lock.Contender)
	return ok && c.TellingCosts()
}

// Describe implements lock.Contender.
func (l *tracedLease) Describe(ctx context.Context, r lock.Resource, id lock.HoldID, owner string) error {
	c, ok := l.Lease.(lock.Contender)
	if !ok {
		return lock.ErrUnsupported
	}
	ctx, span := l.t.client(ctx, "store describe", attrResource.String(string(r)))
	err := c.Describe(ctx, r, id, owner)
	finish(span, err)
	return err
}

// Acquire has one span for a request, however often it waits.
func (l *tracedLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	ctx, span := l.begin(ctx, &q)
	g, err := l.Lease.Acquire(ctx, q)
	l.end(q.ID, span, &g, err)
	return g, err
}

// begin gives the span of a request. It is a function of its own, as end is, so that what it needs does not stand on the stack for as
// long as the store is silent.
//
//go:noinline
func (l *tracedLease) begin(ctx context.Context, q *lock.Request) (context.Context, trace.Span) {
	if value, waits := l.waits.LoadAndDelete(q.ID); waits {
		span := value.(trace.Span)
		return trace.ContextWithSpan(ctx, span), span
	}
	return l.t.client(ctx, "store acquire",
		attrResource.String(string(q.Resource)), attrMode.String(q.Mode.String()), attrTry.Bool(q.Try))
}

//go:noinline
func (l *tracedLease) end(id lock.HoldID, span trace.Span, g *lock.Grant, err error) {
	if errors.Is(err, lock.ErrWaiting) {
		l.waits.Store(id, span)
		return
	}
	if err == nil {
		span.SetAttributes(attrFence.Int64(int64(g.Fence)))
	}
	finish(span, err)
}

func (l *tracedLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	ctx, span := l.t.client(ctx, "store release", attrResource.String(string(r)))
	err := l.Lease.Release(ctx, r, id)
	finish(span, err)
	return err
}

// Detach implements lock.Detacher.
func (l *tracedLease) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	d, ok := l.Lease.(lock.Detacher)
	if !ok {
		return lock.ErrUnsupported
	}
	ctx, span := l.t.client(ctx, "store detach", attrResource.String(string(r)))
	err := d.Detach(ctx, r, id, key, ttl)
	finish(span, err)
	return err
}

func (l *tracedLease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	ctx, span := l.t.client(ctx, "store downgrade", attrResource.String(string(r)))
	err := l.Lease.Downgrade(ctx, r, id)
	finish(span, err)
	return err
}

func (l *tracedLease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	start := time.Now()
	news, err := l.Lease.Heartbeat(ctx)
	if err != nil {
		_, span := l.t.tracer.Start(ctx, "store heartbeat", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(start))
		finish(span, err)
	}
	return news, err
}

func (l *tracedLease) Close(ctx context.Context) error {
	ctx, span := l.t.client(ctx, "store close-lease")
	err := l.Lease.Close(ctx)
	finish(span, err)
	return err
}
