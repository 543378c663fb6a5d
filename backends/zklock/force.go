package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// ForceRelease implements lock.Backend. With a grace it marks the holder's node
// first; its sidecar watches it. When the time is over the node is deleted by
// whoever is there: us, the holder's sidecar, or those who wait for it.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	path, err := b.tree.lockPath(r)
	if err != nil {
		return err
	}
	t, err := b.seat(ctx)
	if err != nil {
		return err
	}
	var st lock.Status
	var children []string
	err = insist(ctx, func() (err error) { st, children, err = b.statusOf(ctx, t, r, path); return err })
	if err != nil {
		return unavailable("force release", err)
	}
	nodes := parseNodes(children)
	i := slices.IndexFunc(nodes, func(n node) bool { return n.id == id })
	if i < 0 {
		return lock.ErrNotHolder
	}
	f := &forced{b: b, t: t, path: path, node: path + "/" + nodes[i].name, names: namesOf(children, nodes[i])}
	held := slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return h.ID == id })
	if held && grace > 0 {
		return f.wait(ctx, r, grace)
	}
	there, lost, err := t.remove(ctx, path, f.names)
	switch {
	case err != nil:
		return unavailable("force release", err)
	case !there && !lost:
		return lock.ErrNotHolder
	}
	return nil
}

// forced is a forced release under way.
type forced struct {
	b     *Backend
	t     *seat
	path  string
	node  string
	names []string
}

// wait marks the node, waits until it is gone or the grace is over, and deletes
// it then.
func (f *forced) wait(ctx context.Context, r lock.Resource, grace time.Duration) error {
	gone := make(chan struct{}, 1)
	s := &sub{notify: func(zksession.Event) { signal(gone) }}
	f.t.subscribe(f.node, s)
	defer f.t.unsubscribe(f.node, s)
	there := false
	err := insist(ctx, func() (err error) { there, err = f.mark(ctx, grace); return err })
	if err != nil {
		return unavailable("force release", err)
	}
	if !there {
		return lock.ErrNotHolder
	}
	over := time.NewTimer(grace)
	defer over.Stop()
	again := time.NewTicker(maxRecheck)
	defer again.Stop()
	for {
		var look *zksession.Call
		err := insist(ctx, func() error {
			look = zksession.Watch(f.node)
			return f.t.s.Do(ctx, look)
		})
		if err != nil && ctx.Err() == nil {
			return unavailable("force release", err)
		}
		if err != nil {
			return f.cut(ctx, r, grace)
		}
		if errors.Is(look.Err, zksession.ErrNoNode) {
			return nil
		}
		select {
		case <-gone:
		case <-again.C:
		case <-over.C:
			if _, _, err := f.t.remove(ctx, f.path, f.names); err != nil {
				return unavailable("force release", err)
			}
			return nil
		case <-ctx.Done():
			return f.cut(ctx, r, grace)
		}
	}
}

func (f *forced) cut(ctx context.Context, r lock.Resource, grace time.Duration) error {
	return fmt.Errorf("force release %q: %w; it ends by itself within %s", string(r), context.Cause(ctx), grace)
}

// mark writes the end into the node, and says whether the node was there. What
// another program has written stays as it is: nobody reads our mark there.
func (f *forced) mark(ctx context.Context, grace time.Duration) (there bool, err error) {
	for {
		get := zksession.Get(f.node)
		if err := f.t.s.Do(ctx, get); err != nil {
			return false, err
		}
		if get.Err != nil {
			if errors.Is(get.Err, zksession.ErrNoNode) {
				return false, nil
			}
			return false, get.Err
		}
		rec, ours := decodeRecord(get.Data)
		if !ours {
			return true, nil
		}
		ms := grace.Milliseconds()
		rec.Revoked = &ms
		set := zksession.Set(f.node, rec.encode(), get.Stat.Version)
		if err := f.t.s.Do(ctx, set); err != nil {
			return false, err
		}
		switch {
		case errors.Is(set.Err, zksession.ErrNoNode):
			return false, nil
		case !errors.Is(set.Err, zksession.ErrBadVersion):
			return true, set.Err
		}
	}
}
