package sqllock

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
)

// logger writes the log: a little later than what it tells of, many rows at a time, so
// that no lock waits for it. What a sidecar that is killed has not written is lost.
type logger struct {
	b    *Backend
	mu   sync.Mutex
	rows []event
	lost int // for want of room

	unsure  bool   // what was written last had no answer. So nothing is written before
	commits uint64 // the server has answered more commits than that
}

const (
	logEvery    = 500 * time.Millisecond
	logAtATime  = 200
	maxUnlogged = 50_000
)

func newLogger(b *Backend) *logger { return &logger{b: b} }

func (g *logger) add(e event) {
	if g.b.o.LogKeep == 0 {
		return
	}
	e.at = g.b.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.rows) >= maxUnlogged {
		g.lost++
		return
	}
	g.rows = append(g.rows, e)
}

// run writes until ctx ends.
func (g *logger) run(ctx context.Context) {
	if g.b.o.LogKeep == 0 {
		return
	}
	for leasekit.Sleep(ctx, logEvery) {
		g.write(ctx)
	}
}

// write writes what there is.
func (g *logger) write(ctx context.Context) {
	for {
		commits := g.b.commits.Load()
		if g.unsure && g.commits == commits {
			return
		}
		g.mu.Lock()
		rows := g.rows[:min(len(g.rows), logAtATime)]
		if g.lost > 0 && len(g.rows) < maxUnlogged {
			rows = append([]event{{what: "gap", at: g.b.clock(), note: "events were lost"}}, rows...)
		}
		g.mu.Unlock()
		if len(rows) == 0 {
			return
		}
		if err := g.insert(ctx, rows); err != nil {
			g.unsure, g.commits = g.b.d.Class(err) == Unclear, commits
			return
		}
		g.unsure = false
		g.mu.Lock()
		if rows[0].what == "gap" {
			g.lost, rows = 0, rows[1:]
		}
		g.rows = append([]event(nil), g.rows[len(rows):]...)
		g.mu.Unlock()
	}
}

func (g *logger) insert(ctx context.Context, rows []event) error {
	args := make([]any, 0, 7*len(rows))
	now := g.b.clock()
	for _, e := range rows {
		args = append(args, (now - e.at).Microseconds(), []byte(e.what), []byte(e.name), []byte(e.id), []byte(e.lease), e.fence, []byte(e.note))
	}
	_, err := g.b.pool.Do(ctx, "log", Statement{SQL: g.b.sql.log + list(len(rows), "({now}-?, ?, ?, ?, ?, ?, ?)", g.b.sql), Args: args, Rare: true})
	return err
}
