package telemetry

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

func TestExporterNames(t *testing.T) {
	for _, c := range []struct {
		name    string
		env     map[string]string
		want    string
		wantErr string
	}{
		{name: "nothing set"},
		{name: "endpoint", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, want: "otlp"},
		{name: "endpoint for traces", env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318"}, want: "otlp"},
		{name: "otlp", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, want: "otlp"},
		{name: "two", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp, console"}, want: "otlp console"},
		{name: "none beats endpoint", env: map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}},
		{name: "disabled", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}},
		{name: "unknown", env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, wantErr: `"zipkin" is not one of`},
	} {
		got, err := exporterNames(func(k string) string { return c.env[k] })
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: error %v, want one with %q", c.name, err, c.wantErr)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestUnknownProtocol(t *testing.T) {
	env := map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
	_, err := StartTracing(t.Context(), func(k string) string { return env[k] }, "v", "s", nil, hclog.NewNullLogger())
	if err == nil || !strings.Contains(err.Error(), `"http/json" is not one of grpc, http/protobuf`) {
		t.Errorf("error %v", err)
	}
}

func TestConsole(t *testing.T) {
	var out bytes.Buffer
	env := map[string]string{"OTEL_TRACES_EXPORTER": "console"}
	tr, err := StartTracing(t.Context(), func(k string) string { return env[k] }, "v9", "pod-1", &out, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	_, end := tr.Call(t.Context(), "get", "orders/42")
	end(nil)
	if err := tr.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"Name":"get"`, "orders/42", "pod-1", "v9"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the span lacks %s: %s", want, out.String())
		}
	}
}

// TestTraceOfAnAcquire goes the whole way: the caller's header, the span of the
// call, and below it that of the store.
func TestTraceOfAnAcquire(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tr := newTracing(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	store := embedded.New()
	m, err := session.New(session.Options{Backend: tr.Backend(store), Sidecar: "test"})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(running) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := m.Everybody().Open(t.Context(), session.OpenRequest{Liveness: session.Stream})
	if err != nil {
		t.Fatal(err)
	}

	const traceID = "0af7651916cd43dd8448eb211c80319c"
	header := map[string]string{"traceparent": "00-" + traceID + "-b7ad6b7169203331-01"}
	q := session.AcquireRequest{Resource: "orders/42", Mode: lock.Exclusive, Wait: 5 * time.Second}
	ctx, end := tr.Acquire(tr.Continue(t.Context(), func(k string) string { return header[k] }), q)
	g, err := s.Acquire(ctx, q)
	end(g, err)
	if err != nil {
		t.Fatal(err)
	}
	q.Wait, q.Owner = 0, "other"
	ctx, end = tr.Acquire(t.Context(), q)
	g, err = s.Acquire(ctx, q)
	end(g, err)

	var calls, below []tracetest.SpanStub
	for _, span := range spans.GetSpans() {
		switch span.Name {
		case "acquire":
			calls = append(calls, span)
		case "store acquire":
			below = append(below, span)
		}
	}
	if len(calls) != 2 || len(below) != 2 {
		t.Fatalf("%d spans of calls and %d of the store, want 2 and 2: %+v", len(calls), len(below), spans.GetSpans())
	}
	if got := calls[0].SpanContext.TraceID().String(); got != traceID {
		t.Errorf("the call is in trace %s, want the caller's %s", got, traceID)
	}
	if calls[0].SpanKind != trace.SpanKindServer || below[0].SpanKind != trace.SpanKindClient {
		t.Errorf("kinds %v and %v", calls[0].SpanKind, below[0].SpanKind)
	}
	for i := range calls {
		if below[i].Parent.SpanID() != calls[i].SpanContext.SpanID() {
			t.Errorf("the store's span %d is not below the call's", i)
		}
	}
	attr := func(s tracetest.SpanStub, key string) string {
		for _, a := range s.Attributes {
			if string(a.Key) == key {
				return a.Value.String()
			}
		}
		return ""
	}
	for key, want := range map[string]string{
		"locksidecar.resource": "orders/42", "locksidecar.mode": "EXCLUSIVE",
		"locksidecar.wait_seconds": "5", "locksidecar.result": "ok", "locksidecar.count": "1",
	} {
		if got := attr(calls[0], key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if got := attr(calls[1], "locksidecar.result"); got != "held" {
		t.Errorf("the result of a try is %q, want held", got)
	}
	if calls[1].Status.Description != "" {
		t.Errorf("a lock that is held counts as an error: %+v", calls[1].Status)
	}
}

// silent is a bell of a request that is asked for anyway.
type silent struct{}

func (silent) Ring() {}

// A request of the store has one span, however often it waits.
func TestOneSpanOfAWait(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tr := newTracing(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	store := embedded.New()
	l, err := tr.Backend(store).OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(l.Close(context.WithoutCancel(t.Context())), store.Close()); err != nil {
			t.Error(err)
		}
	}()
	q := lock.Request{ID: "holder", Resource: "r", Mode: lock.Exclusive, Bell: silent{}}
	if _, err := l.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	q.ID = "waiter"
	for range 3 {
		if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrWaiting) {
			t.Fatal(err)
		}
	}
	if n := len(spans.GetSpans()); n != 2 { // of the lease, and of the holder
		t.Errorf("%d spans have ended while it waits: %+v", n, spans.GetSpans())
	}
	if err := l.Release(t.Context(), "r", "holder"); err != nil {
		t.Fatal(err)
	}
	g, err := l.Acquire(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	all := spans.GetSpans()
	last := all[len(all)-1]
	if len(all) != 4 || last.Name != "store acquire" || !slices.Contains(last.Attributes, attrFence.Int64(int64(g.Fence))) {
		t.Errorf("the spans are %+v", all)
	}
}

// guarding is a lease whose grants have guards.
type guarding struct{ lock.Contender }

func (guarding) TellsContended() bool     { return true }
func (guarding) Guards(lock.Request) bool { return true }
func (guarding) TellingCosts() bool       { return true }

// What a lease says of itself is true with traces, too.
func TestTracedLeaseIsWhatItWas(t *testing.T) {
	tr := newTracing(sdktrace.NewTracerProvider())
	if l := (&tracedLease{Lease: guarding{}, t: tr}); !l.TellsContended() || !l.Guards(lock.Request{}) || !l.TellingCosts() {
		t.Error("a lease that tells, and whose grants have guards, is none")
	}
	if l := (&tracedLease{t: tr}); l.TellsContended() || l.Guards(lock.Request{}) || l.TellingCosts() {
		t.Error("a lease that tells nothing, and has no guards, does")
	}
}
