package localapi

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Readiness tells why locks cannot be granted, and nil when they can.
type Readiness struct {
	Now  func() error
	Once func() error // nil also after Now was
}

// HealthRoutes adds /healthz (the process answers), /readyz (locks can be
// granted; with ?once=true: they can, or could before) and /metrics to mux. It is for the socket and for
// the TCP address of probes alike.
func HealthRoutes(mux *http.ServeMux, readiness Readiness, metrics http.Handler) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ready := readiness.Now
		if r.URL.Query().Get("once") == "true" {
			ready = readiness.Once
		}
		if err := ready(); err != nil {
			plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		plain(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", metrics)
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n"))
}

// health is grpc.health.v1. The sidecar as a whole and its one service have the
// same health: SERVING when locks can be granted.
type health struct {
	healthpb.UnimplementedHealthServer
	*Server
}

// healthInterval is how often Watch looks.
const healthInterval = 500 * time.Millisecond

func (h *health) status(service string) (healthpb.HealthCheckResponse_ServingStatus, bool) {
	switch {
	case service != "" && service != pb.LockSidecar_ServiceDesc.ServiceName:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
	case h.o.Manager.Ready() != nil:
		return healthpb.HealthCheckResponse_NOT_SERVING, true
	default:
		return healthpb.HealthCheckResponse_SERVING, true
	}
}

// Check tells the health now.
func (h *health) Check(_ context.Context, q *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st, known := h.status(q.GetService())
	if !known {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", q.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

// Watch tells the health now and whenever it changes.
func (h *health) Watch(q *healthpb.HealthCheckRequest, st grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if now, _ := h.status(q.GetService()); now != last {
			if err := st.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-tick.C:
		case <-st.Context().Done():
			return context.Cause(st.Context())
		}
	}
}
