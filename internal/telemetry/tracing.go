package telemetry

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	tracerName  = "github.com/locksidecar/locksidecar"
	serviceName = "locksidecar"

	// exportErrorsEvery bounds how often the log tells that spans cannot be sent.
	exportErrorsEvery = time.Minute

	keyError = "error"
)

// Tracing makes spans. There is none (nil) unless the environment asks for it,
// and whoever has none must not put it on any path.
type Tracing struct {
	provider   *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// StartTracing begins tracing when the OTEL_* variables ask for it, and returns
// nil when they do not:
//
//	OTEL_SDK_DISABLED=true                 off, whatever else is set
//	OTEL_TRACES_EXPORTER                   otlp, console (to w), none, or several with commas
//	OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT   on, with otlp, when OTEL_TRACES_EXPORTER is not set
//	OTEL_EXPORTER_OTLP_[TRACES_]PROTOCOL   grpc, or http/protobuf (default)
//
// The other variables of the specification (sampler, headers, certificates,
// time-outs, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) are read by the SDK.
func StartTracing(ctx context.Context, getenv func(string) string, version, sidecar string, w io.Writer, log hclog.Logger) (*Tracing, error) {
	names, err := exporterNames(getenv)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	var options []sdktrace.TracerProviderOption
	for _, name := range names {
		option, err := exporter(ctx, name, getenv, w)
		if err != nil {
			return nil, fmt.Errorf("start tracing with %s: %w", name, err)
		}
		options = append(options, option)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", serviceName),
			attribute.String("service.version", version),
			attribute.String("service.instance.id", sidecar)),
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithFromEnv()) // last: it wins
	if err != nil {
		return nil, fmt.Errorf("start tracing: %w", err)
	}
	otel.SetErrorHandler(&exportErrors{log: log})
	return newTracing(sdktrace.NewTracerProvider(append(options, sdktrace.WithResource(about))...)), nil
}

func newTracing(p *sdktrace.TracerProvider) *Tracing {
	return &Tracing{
		provider:   p,
		tracer:     p.Tracer(tracerName),
		propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
}

// Shutdown sends what has not been sent yet.
func (t *Tracing) Shutdown(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// exporterNames tells what the environment asks for.
func exporterNames(getenv func(string) string) ([]string, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	asked := getenv("OTEL_TRACES_EXPORTER")
	if asked == "" && otlpEnv(getenv, "ENDPOINT") != "" {
		asked = "otlp"
	}
	var names []string
	for name := range strings.SplitSeq(asked, ",") {
		switch name = strings.TrimSpace(name); name {
		case "", "none":
		case "otlp", "console":
			names = append(names, name)
		default:
			return nil, fmt.Errorf("environment variable OTEL_TRACES_EXPORTER: %q is not one of otlp, console, none", name)
		}
	}
	return names, nil
}

// otlpEnv reads a variable that there is for traces and for all signals.
func otlpEnv(getenv func(string) string, name string) string {
	if v := getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
		return v
	}
	return getenv("OTEL_EXPORTER_OTLP_" + name)
}

func exporter(ctx context.Context, name string, getenv func(string) string, w io.Writer) (sdktrace.TracerProviderOption, error) {
	var e sdktrace.SpanExporter
	var err error
	if name == "console" {
		e, err = stdouttrace.New(stdouttrace.WithWriter(w))
	} else {
		switch protocol := otlpEnv(getenv, "PROTOCOL"); protocol {
		case "", "http/protobuf":
			e, err = otlptracehttp.New(ctx)
		case "grpc":
			e, err = otlptracegrpc.New(ctx)
		default:
			err = fmt.Errorf("protocol %q is not one of grpc, http/protobuf", protocol)
		}
	}
	if err != nil {
		return nil, err
	}
	return sdktrace.WithBatcher(e), nil
}

// exportErrors puts the SDK's errors into the log, without flooding it.
type exportErrors struct {
	log  hclog.Logger
	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (h *exportErrors) Handle(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); now.Sub(h.last) >= exportErrorsEvery {
		h.last = now
		h.log.Warn("cannot send spans", keyError, err)
	}
}
