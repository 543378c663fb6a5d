package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// tracingFarewell bounds how long the last spans may take to be sent.
const tracingFarewell = 3 * time.Second

// errDrained is why the manager is stopped when everything went as it should.
var errDrained = errors.New("the drain time is over")

// sidecarOptions are what a sidecar is made of.
type sidecarOptions struct {
	store      string // URL with its secrets
	ttl        time.Duration
	namespace  string
	name       string
	lostGrace  time.Duration
	turns      int           // of the arbiter
	park       time.Duration // the same
	deadlock   session.DeadlockMode
	limits     session.Limits
	socket     string
	socketMode fs.FileMode
	access     localapi.Access
	principals localapi.Principals // nil: the uid
	replace    bool                // the socket of a sidecar that runs
	sideDoors  string              // as in localapi.Options
	spaces     func(string) string // of a principal; nil: all have one
	hideNames  bool                // in metrics, but for those of spaces
	apiLimits  localapi.Limits
	httpAddr   string // empty: no TCP
	drain      time.Duration
	logger     hclog.Logger
	stderr     io.Writer                       // for spans on the console
	noLeases   bool                            // only look at the store
	wrap       func(lock.Backend) lock.Backend // nil: the store as it is
	failed     func(error)                     // as in localapi.Options
}

// sidecar is the whole of it, wired together.
type sidecar struct {
	o       sidecarOptions
	log     hclog.Logger
	backend lock.Backend
	manager *session.Manager
	api     *localapi.Server
	shards  *shardLog
	health  *healthServer      // nil: not asked for
	tracing *telemetry.Tracing // nil: not asked for
}

// newSidecar checks everything that can be checked without the store. Nothing
// runs before Run.
func newSidecar(ctx context.Context, o sidecarOptions) (_ *sidecar, err error) {
	s := &sidecar{o: o, log: o.logger}
	if s.o.name == "" {
		if s.o.name, err = defaultName(); err != nil {
			return nil, err
		}
	}
	metrics := telemetry.NewMetrics(buildVersion())
	if o.hideNames {
		metrics.HideNames()
	}
	s.tracing, err = telemetry.StartTracing(ctx, os.Getenv, buildVersion(), s.o.name, o.stderr, s.log.Named("tracing"))
	if err != nil {
		return nil, usage("%w", err)
	}
	local := &arbiters{tracing: s.tracing, o: arbiter.Options{Turns: o.turns, Park: o.park, Yielded: metrics.Yielded}}
	s.shards = newShardLog(o.store, s.log.Named("shards"))
	if s.backend, err = backends.OpenStore(o.store, metrics.Command, local.wrap, s.shards.tell); err != nil {
		return nil, err
	}
	if o.wrap != nil {
		s.backend = o.wrap(s.backend)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.backend.Close())
		}
	}()
	s.manager, err = session.New(session.Options{
		Backend:   s.backend,
		TTL:       o.ttl,
		Namespace: o.namespace,
		Sidecar:   s.o.name,
		Limits:    o.limits,
		LostGrace: o.lostGrace,
		Logger:    s.log.Named("session"),
		Observer:  metrics,
		Parked:    func() int { return local.stats().Parked },
		Deadlock:  o.deadlock,
	})
	if err != nil {
		return nil, err
	}
	metrics.WatchLevels(s.manager.Info)
	metrics.WatchWaits(s.manager.EachWait)
	metrics.WatchPrincipals(countedPrincipals(s.manager.EachPrincipal))
	metrics.WatchAccounts(s.manager.EachAccount)
	metrics.WatchArbiter(func() (saved, contended uint64, parked int) {
		st := local.stats()
		return st.Saved, st.Contended, st.Parked
	})
	metrics.WatchShards(s.shards.levels)
	api := localapi.Options{
		Manager:    s.manager,
		Socket:     o.socket,
		Mode:       o.socketMode,
		Access:     o.access,
		Replace:    o.replace,
		SideDoors:  o.sideDoors,
		Principals: o.principals,
		Spaces:     o.spaces,
		Limits:     o.apiLimits,
		Version:    buildVersion(),
		Store:      s.shards.store,
		Metrics:    metrics.Handler(),
		Failed:     o.failed,
		Logger:     s.log.Named("api"),
	}
	if s.tracing != nil {
		api.Tracer = s.tracing
	}
	s.api = localapi.New(api)
	if o.httpAddr != "" {
		mux := http.NewServeMux()
		localapi.HealthRoutes(mux, localapi.Readiness{Now: s.manager.Ready, Once: s.manager.OnceReady}, metrics.Handler())
		if s.health, err = newHealthServer(ctx, o.httpAddr, mux, s.log.Named("http")); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// defaultName is that of the pod, else that of the machine.
func defaultName() (string, error) {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find a name for this sidecar (or give --name): %w", err)
	}
	return host, nil
}

// Run serves until ctx ends, then drains, and returns nil when everything was
// given back as far as the store could be reached. listening, which may be nil, is called when apps can connect.
func (s *sidecar) Run(ctx context.Context, listening func()) error {
	shardLog := start(ctx, s.shards.run)
	var manager, health *task
	takes := ctx.Err() == nil // else whoever serves the socket keeps it
	if s.o.replace && localapi.Served(ctx, s.o.socket) {
		manager = start(ctx, s.manager.Run)
		if s.health != nil {
			health = start(ctx, s.health.Run)
		}
		takes = s.awaitReady(ctx, manager, health)
	}
	var api *task
	if takes {
		api = start(ctx, s.api.Run)
	}
	select {
	case <-s.api.Listening():
		if manager == nil && !s.o.noLeases {
			manager = start(ctx, s.manager.Run)
		}
		if health == nil && s.health != nil {
			health = start(ctx, s.health.Run)
		}
		if listening != nil {
			listening()
		}
		select {
		case <-ctx.Done():
			s.drain(ctx)
		case <-api.ended():
		case <-manager.ended():
		case <-health.ended():
		}
	case <-api.ended():
	case <-manager.ended():
	case <-health.ended():
	case <-ctx.Done():
	}
	// Apps must hear that their locks end, so the API stops after the manager.
	err := errors.Join(manager.stop(), health.stop(), api.stop(), shardLog.stop())
	// The store has been told what could be told. A connection that was broken
	// before it was closed is no failure to stop.
	if err := s.backend.Close(); err != nil {
		s.log.Warn("close the connections to the store", keyError, err)
	}
	if s.tracing != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracingFarewell)
		defer cancel()
		if err := s.tracing.Shutdown(last); err != nil {
			s.log.Warn("tracing", keyError, err)
		}
	}
	return err
}

const (
	// readyLook is how often a sidecar that is to replace another one looks whether it can grant locks.
	readyLook = 100 * time.Millisecond
	// servedLook is how often it looks whether that one serves still.
	servedLook = time.Second
)

// awaitReady waits until locks can be granted, or nobody serves the socket any more: until then, who does can
// perhaps do better than one whose store does not answer. It reports false when this sidecar is about to end: then
// that one keeps the socket.
func (s *sidecar) awaitReady(ctx context.Context, manager, health *task) bool {
	s.log.Info("another sidecar serves the socket: it is replaced when locks can be granted here")
	look, ask := time.NewTicker(readyLook), time.NewTicker(servedLook)
	defer look.Stop()
	defer ask.Stop()
	for {
		ready := s.manager.OnceReady() == nil
		select {
		case <-ctx.Done():
			return false
		case <-manager.ended():
			return false
		case <-health.ended():
			return false
		default:
		}
		if ready {
			return true
		}
		select {
		case <-look.C:
		case <-ask.C:
			if !localapi.Served(ctx, s.o.socket) {
				return true
			}
		case <-ctx.Done():
		case <-manager.ended():
		case <-health.ended():
		}
	}
}

// drain takes no new sessions and lets the apps finish, for a while.
func (s *sidecar) drain(ctx context.Context) {
	holds := s.manager.Info().Holds
	s.log.Info("stopping: no new sessions, waiting for apps to finish", keyHolds, holds, keyDrain, s.o.drain)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.o.drain, errDrained)
	defer cancel()
	if err := s.manager.Drain(ctx); err != nil {
		s.log.Warn("releasing what apps still hold", keyHolds, s.manager.Info().Holds, keyError, err)
	}
}
