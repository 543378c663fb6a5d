package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	healthTimeout  = 10 * time.Second
	healthIdle     = 2 * time.Minute
	healthFarewell = time.Second
)

// healthServer answers probes and scrapes over TCP, and nothing else.
type healthServer struct {
	listener net.Listener
	log      hclog.Logger
	server   *http.Server
}

func newHealthServer(ctx context.Context, addr string, h http.Handler, log hclog.Logger) (*healthServer, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for probes (--http-addr): %w", err)
	}
	return &healthServer{listener: l, log: log, server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: healthTimeout,
		ReadTimeout:       healthTimeout,
		WriteTimeout:      healthTimeout,
		IdleTimeout:       healthIdle,
		ErrorLog:          log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}}, nil
}

// Run serves until ctx ends.
func (s *healthServer) Run(ctx context.Context) error {
	s.log.Info("serving /healthz, /readyz and /metrics", keyAddress, s.listener.Addr())
	served := start(ctx, func(context.Context) error { return s.server.Serve(s.listener) })
	select {
	case <-ctx.Done():
	case <-served.done:
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthFarewell)
	defer cancel()
	if s.server.Shutdown(last) != nil {
		_ = s.server.Close()
	}
	if err := served.stop(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes: %w", err)
	}
	return nil
}
