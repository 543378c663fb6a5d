package measure

import (
	"context"
	"time"
)

// CPU is the processor time that went into something, in microseconds.
type CPU struct {
	App    float64 `json:"app"`    // this process, which makes the calls
	Server float64 `json:"server"` // the sidecar, or who stands in its place
	Store  float64 `json:"store"`  // 0 where it cannot be told
}

// Total is what the whole machine spent.
func (c CPU) Total() float64 { return c.App + c.Server + c.Store }

// Meter reads the processor time that was used so far, by this process, by the
// server of that number unless it is 0, and by the store.
type Meter func(ctx context.Context, server int) (CPU, error)

// between is what was used from one moment to another, or until ctx ends.
func (m Meter) between(ctx context.Context, server int, from, to time.Time) (CPU, error) {
	sleepUntil(ctx, from)
	before, err := m(ctx, server)
	if err != nil {
		return CPU{}, err
	}
	sleepUntil(ctx, to)
	after, err := m(ctx, server)
	if err != nil {
		return CPU{}, err
	}
	return CPU{App: after.App - before.App, Server: after.Server - before.Server, Store: after.Store - before.Store}, nil
}

func (c CPU) per(pairs int) CPU {
	n := float64(pairs)
	return CPU{App: c.App / n, Server: c.Server / n, Store: c.Store / n}
}

func sleepUntil(ctx context.Context, t time.Time) {
	select {
	case <-time.After(time.Until(t)):
	case <-ctx.Done():
	}
}
