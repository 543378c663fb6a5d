package telemetry

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/session"
)

// The methods here are what the local API asks of a tracer.

// Continue gives a context in the trace that the W3C headers of a call name.
func (t *Tracing) Continue(ctx context.Context, header func(name string) string) context.Context {
	return t.propagator.Extract(ctx, headers(header))
}

// Call begins the span of a call of an app.
func (t *Tracing) Call(ctx context.Context, name, resource string) (context.Context, func(error)) {
	var attrs []attribute.KeyValue
	if resource != "" {
		attrs = append(attrs, attrResource.String(resource))
	}
	ctx, span := t.server(ctx, name, attrs)
	return ctx, func(err error) { finish(span, err) }
}

// Acquire begins the span of an app's acquire, which ends when it is answered.
func (t *Tracing) Acquire(ctx context.Context, r session.AcquireRequest) (context.Context, func(session.Grant, error)) {
	attrs := []attribute.KeyValue{attrResource.String(cmp.Or(r.Resource, strings.Join(r.Resources, " "))), attrMode.String(r.Mode.String())}
	if r.Wait != session.Forever {
		attrs = append(attrs, attrWait.Float64(r.Wait.Seconds()))
	}
	ctx, span := t.server(ctx, "acquire", attrs)
	return ctx, func(g session.Grant, err error) {
		if err == nil {
			span.SetAttributes(attrFence.Int64(int64(g.Fence)), attrCount.Int(g.Count))
		}
		finish(span, err)
	}
}

func (t *Tracing) server(ctx context.Context, name string, attrs []attribute.KeyValue) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attrs...))
}

// refused reports whether a call was answered as it should be, with a no.
func refused(err error) bool {
	return errors.Is(err, session.ErrUpgradeRefused) || errors.Is(err, session.ErrLimit) ||
		errors.Is(err, session.ErrDraining) || errors.Is(err, session.ErrSessionClosed)
}

// headers is a propagation.TextMapCarrier that can only be read.
type headers func(name string) string

var _ propagation.TextMapCarrier = headers(nil)

func (h headers) Get(name string) string { return h(name) }
func (h headers) Set(string, string)     {}
func (h headers) Keys() []string         { return nil }
