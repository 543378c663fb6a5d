package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// LeaseTTL is the time to live of a sidecar's lease in the store: the default.
const LeaseTTL = 10 * time.Second

const (
	readyTimeout = 30 * time.Second
	readyEvery   = 20 * time.Millisecond
	stopGrace    = 10 * time.Second
)

// Sidecar is one that runs and is ready.
type Sidecar struct {
	Socket  string
	process *proc.Process
	http    *http.Client
}

// Start starts a sidecar on a store, with more flags, and returns when it can grant locks.
func (b *Binary) Start(ctx context.Context, store, socket string, flags ...string) (*Sidecar, error) {
	s, err := b.Launch(store, socket, flags...)
	if err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Launch starts a sidecar and does not wait for it.
func (b *Binary) Launch(store, socket string, flags ...string) (*Sidecar, error) {
	args := append([]string{"serve", "--store", store, "--socket", socket, "--ttl", LeaseTTL.String()}, flags...)
	p, err := proc.Start(b.path, args...)
	if err != nil {
		return nil, err
	}
	return &Sidecar{Socket: socket, process: p, http: httpClient(socket, 1)}, nil
}

// PID is the number of the sidecar's process.
func (s *Sidecar) PID() int { return s.process.PID() }

// Close ends the sidecar as an orderly stop does.
func (s *Sidecar) Close() error {
	s.http.CloseIdleConnections()
	return s.process.Stop(stopGrace)
}

func (s *Sidecar) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, err := s.get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-time.After(readyEvery):
		case <-s.process.Gone():
			return fmt.Errorf("the sidecar ended:\n%s", s.process.Log())
		case <-ctx.Done():
			return fmt.Errorf("wait for the sidecar to be ready: %w\n%s", err, s.process.Log())
		}
	}
}

// get returns the body of a page of the sidecar.
func (s *Sidecar) get(ctx context.Context, path string) (string, error) {
	return roundTrip(ctx, s.http, http.MethodGet, path, nil)
}

// httpClient keeps as many connections to a sidecar as there are callers.
func httpClient(socket string, callers int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: callers,
		DisableCompression:  true,
	}}
}

// roundTrip makes one request and returns the body of a good answer.
func roundTrip(ctx context.Context, c *http.Client, method, path string, body io.Reader) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://sidecar"+path, body)
	if err != nil {
		return "", fmt.Errorf("make a request: %w", err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return "", fmt.Errorf("read the answer to %s %s: %w", method, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return string(answer), nil
}
