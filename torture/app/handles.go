package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/torture/history"
)

// Detached is for how long holds are detached, and handles extended. It is always the same: so a
// request that arrives late makes no time shorter.
const Detached = 1500 * time.Millisecond

// letter is what an app hands on with a handle. It is a file in the folder that all apps share.
type letter struct {
	path string

	Handle, Resource, Lock string
	Fence                  int64
	Shared                 bool
	Limit, Slot            int
}

// name names a handle in histories.
func (l letter) name() string { return l.Handle[max(0, len(l.Handle)-24):] }

// post lays a letter where every app finds it.
func (a *app) post(l letter, n string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	draft := filepath.Join(a.Letters, ".draft-"+n)
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, filepath.Join(a.Letters, n))
}

// pick takes one of the letters, or reads it and leaves it to others too. nil: there is none.
func (w *worker) pick() *letter {
	files, err := os.ReadDir(w.Letters)
	if err != nil {
		return nil
	}
	var paths []string
	for _, f := range files {
		if f.Name()[0] != '.' {
			paths = append(paths, filepath.Join(w.Letters, f.Name()))
		}
	}
	if len(paths) == 0 {
		return nil
	}
	l := &letter{path: paths[w.rand.IntN(len(paths))]}
	text, err := os.ReadFile(l.path)
	if err != nil || json.Unmarshal(text, l) != nil {
		return nil // somebody else has taken it
	}
	if w.chance(60) && os.Remove(l.path) != nil {
		return nil
	}
	return l
}

// answer does something with a handle that somebody has sent. False: there is none.
func (w *worker) answer(ctx context.Context) bool {
	l := w.pick()
	if l == nil {
		return false
	}
	w.dawdle(ctx)
	switch n := w.rand.IntN(100); {
	case n < 70:
		w.attach(ctx, l)
	case n < 85:
		w.extend(ctx, l)
	default:
		w.free(ctx, l)
	}
	return true
}

// dawdle leaves some time between two steps, for what breaks things.
func (w *worker) dawdle(ctx context.Context) {
	if w.chance(50) {
		pause(ctx, w.upTo(100*time.Millisecond))
	}
}

// limit is for one request.
const limit = 5 * time.Second

func (w *worker) attach(ctx context.Context, n *letter) {
	s := w.open(ctx)
	if s == nil {
		return
	}
	r := history.Record{Kind: history.Attaching, At: history.Now(), Resource: n.Resource, Chain: n.Lock, Handle: n.name()}
	w.write(r)
	actx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l, err := s.Attach(actx, n.Handle)
	at := history.Now()
	if err != nil {
		w.missed(ctx, n, r.At, err)
		return
	}
	h := &hold{
		worker: w, s: s, l: l, chain: n.Lock, handle: n,
		wish: wish{
			resource: n.Resource, shared: n.Shared, limit: n.Limit, busy: w.upTo(150 * time.Millisecond),
			linger: w.upTo(300 * time.Millisecond), detach: w.chance(30),
		},
	}
	if w.chance(15) {
		h.busy = Detached + w.upTo(time.Second) // until its time is over
	}
	g := h.record(history.Granted, at)
	g.Call, g.Shared, g.Fence, g.Until = r.At, n.Shared, l.Fence, h.until(at)
	w.write(g)
	if l.Fence != n.Fence || l.Resource != n.Resource || (l.Mode() == client.Shared) != n.Shared || l.Slot != n.Slot {
		w.wrong(fmt.Sprintf("what is attached is %v %s with fence %d, and was %+v", l.Mode(), l.Resource, l.Fence, *n))
	}
	h.live(ctx)
}

// missed notes that a handle was worth nothing, or that nobody knows.
func (w *worker) missed(ctx context.Context, n *letter, call time.Duration, err error) {
	if !errors.Is(err, client.ErrNotHolder) {
		w.refused(ctx, wish{resource: n.Resource, cancel: limit}, err)
		return
	}
	w.write(history.Record{Kind: history.Missed, Call: call, At: history.Now(), Resource: n.Resource, Chain: n.Lock, Handle: n.name()})
	_ = os.Remove(n.path) // somebody else may have been quicker
}

// extend extends a handle; it reports whether it was.
func (w *worker) extend(ctx context.Context, n *letter) {
	r := history.Record{Kind: history.Extended, Call: history.Now(), Resource: n.Resource, Chain: n.Lock, Handle: n.name(), Keep: Detached}
	var fence int64
	err := w.ask(ctx, func(ctx context.Context, c *client.Client) error {
		d, err := c.ExtendHandle(ctx, n.Handle, Detached)
		fence = d.GetFence()
		return err
	})
	r.At = history.Now()
	switch {
	case err != nil:
		w.missed(ctx, n, r.Call, err)
		return
	case fence != n.Fence:
		w.wrong(fmt.Sprintf("what is extended has fence %d, and had %d", fence, n.Fence))
	}
	w.write(r)
}

// free releases a hold by its handle.
func (w *worker) free(ctx context.Context, n *letter) {
	r := history.Record{Kind: history.Freeing, At: history.Now(), Resource: n.Resource, Chain: n.Lock, Handle: n.name()}
	w.write(r)
	err := w.ask(ctx, func(ctx context.Context, c *client.Client) error { return c.ReleaseHandle(ctx, n.Handle) })
	if err != nil && !errors.Is(err, client.ErrNotHolder) {
		w.refused(ctx, wish{resource: n.Resource, cancel: limit}, err)
		return
	}
	r.Kind, r.Call, r.At = history.Freed, r.At, history.Now()
	w.write(r)
	_ = os.Remove(n.path) // somebody else may have been quicker
}

// ask asks the sidecar something outside of the session.
func (w *worker) ask(ctx context.Context, f func(context.Context, *client.Client) error) error {
	if w.open(ctx) == nil {
		return ctx.Err()
	}
	w.mu.Lock()
	c := w.client
	w.mu.Unlock()
	if c == nil { // another worker has found the session ended
		return client.ErrSessionClosed
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx, c)
}

func (w *worker) wrong(what string) {
	w.write(history.Record{Kind: history.Wrong, At: history.Now(), Err: what})
}

// handOn detaches the hold and sends its handle to all.
func (h *hold) handOn(ctx context.Context) {
	if !h.look(ctx, history.Leaving) {
		return
	}
	dctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n := letter{Resource: h.l.Resource, Lock: h.l.ID, Fence: h.l.Fence, Shared: h.shared, Limit: h.limit, Slot: h.l.Slot}
	if h.chain != "" {
		n.Lock = h.chain
	}
	r := h.record(history.Detached, 0)
	r.Call, r.Keep = history.Now(), Detached
	d, err := h.l.Detach(dctx, Detached)
	r.At = history.Now()
	if err != nil {
		r.Err = err.Error()
		h.write(r)
		if h.look(ctx, history.Leaving) { // refused: the store has not confirmed that it is shared
			h.release(ctx)
		}
		return
	}
	n.Handle = d.GetHandle()
	r.Handle = n.name()
	h.write(r)
	if d.GetFence() != n.Fence || d.GetResource() != n.Resource {
		h.wrong(fmt.Sprintf("what is detached is %v, and was %+v", d, n))
	}
	h.dawdle(ctx) // who is killed here takes the handle with it
	h.sent++
	if err := h.post(n, fmt.Sprintf("%s-%d-%d", h.Name, h.number, h.sent)); err != nil {
		h.wrong("post a letter: " + err.Error())
	}
}
