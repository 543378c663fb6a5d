package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// seat is a session of ours, and its node among the leases.
type seat struct {
	b    *Backend
	s    *zksession.Session
	node string
	data []byte

	mu   sync.Mutex
	subs map[string]map[*sub]struct{} // by path
	time serverTime
}

// sub is somebody who wants to know when a node is changed or deleted. notify is
// called on the goroutine that reads from the server: it must not block.
type sub struct{ notify func(zksession.Event) }

// leaseRecord is the data of a lease's node, for people.
type leaseRecord struct {
	Version int    `json:"locksidecar"`
	Sidecar string `json:"sidecar,omitempty"`
	TTL     string `json:"ttl"`
}

// newSeat makes a seat for a lease, or for no lease when o is nil.
func (b *Backend) newSeat(id lock.LeaseID, o *lock.LeaseOptions) *seat {
	t := &seat{b: b, node: b.tree.leases() + "/" + string(id), data: []byte("{}"), subs: make(map[string]map[*sub]struct{})}
	if o != nil {
		t.data, _ = json.Marshal(leaseRecord{Version: recordVersion, Sidecar: o.Sidecar, TTL: o.TTL.String()}) // strings always marshal
	}
	return t
}

// open opens the session and makes its node.
func (t *seat) open(ctx context.Context, cfg zksession.Config) error {
	c := &t.b.cfg
	cfg.Addrs, cfg.TLS, cfg.Digest, cfg.OnEvent, cfg.Observe = c.addrs, c.tls, c.digest, t.event, t.b.observe
	if cfg.Timeout == 0 {
		cfg.Timeout = c.timeout
	}
	s, err := zksession.Open(ctx, cfg)
	if err != nil {
		return unavailable("open session", err)
	}
	t.s = s
	if err := t.begin(ctx); err != nil {
		return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return nil
}

// begin makes the seat's node, which every session needs: a heartbeat writes it.
func (t *seat) begin(ctx context.Context) error {
	calls := t.b.tree.ancestors(t.b.tree.leases())
	own := zksession.Create(t.node, t.data, t.b.tree.acl, zksession.Ephemeral)
	made := zksession.Get(t.node)
	sent := t.b.clock()
	if err := t.s.Do(ctx, append(calls, own, made)...); err != nil {
		return unavailable("open lease", err)
	}
	if own.Err != nil {
		for _, c := range calls { // the first that failed is the reason
			if c.Err != nil && !errors.Is(c.Err, zksession.ErrNodeExists) {
				return unavailable("open lease", c.Err)
			}
		}
		return unavailable("open lease", own.Err)
	}
	if made.Err == nil {
		t.time.saw(made.Stat.Mtime, sent, t.b.clock())
	}
	return nil
}

// beat writes the seat's node. A nil error means that the leader knows the
// session.
func (t *seat) beat(ctx context.Context) error {
	sent := t.b.clock()
	set := zksession.Set(t.node, t.data, zksession.AnyVersion)
	if err := t.s.Do(ctx, set); err != nil {
		return err
	}
	if errors.Is(set.Err, zksession.ErrNoNode) { // somebody has deleted it by hand
		return t.begin(ctx)
	}
	if set.Err == nil {
		t.time.saw(set.Stat.Mtime, sent, t.b.clock())
	}
	return set.Err
}

// event tells those who want to know of a node.
func (t *seat) event(ev zksession.Event) {
	t.mu.Lock()
	var subs []*sub
	for s := range t.subs[ev.Path] {
		subs = append(subs, s)
	}
	t.mu.Unlock()
	for _, s := range subs {
		s.notify(ev)
	}
}

// subscribe has s told of every change of a node that is watched. It must come
// before the watch is set.
func (t *seat) subscribe(path string, s *sub) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.subs[path]
	if m == nil {
		m = make(map[*sub]struct{}, 1)
		t.subs[path] = m
	}
	m[s] = struct{}{}
}

func (t *seat) unsubscribe(path string, s *sub) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.subs[path]
	delete(m, s)
	if len(m) == 0 {
		delete(t.subs, path)
	}
}

// serverTime is the leader's clock as far as it is known: the time of a
// transaction, and when it was sent and answered by our clock. It is only
// compared with other times of the server.
type serverTime struct {
	mu             sync.Mutex
	ms             int64
	sent, answered time.Duration
}

func (t *serverTime) saw(ms int64, sent, answered time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ms, t.sent, t.answered = ms, sent, answered
}

// since is how long ago something was at the server, at least and at most.
func (t *serverTime) since(ms int64, now time.Duration) (least, most time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ago := time.Duration(t.ms-ms) * time.Millisecond
	least = ago + now - t.answered - time.Millisecond
	most = ago + now - t.sent + time.Millisecond
	return max(0, least), max(0, most)
}

// refresh makes the seat know the server's time when it has not heard it lately.
// A lease's heartbeats see to that.
func (t *seat) refresh(ctx context.Context) error {
	const lately = time.Minute
	t.time.mu.Lock()
	fresh := t.b.clock()-t.time.answered < lately
	t.time.mu.Unlock()
	if fresh {
		return nil
	}
	if err := t.beat(ctx); err != nil {
		return fmt.Errorf("ask for the time: %w", err)
	}
	return nil
}

// maxLost is how often in a row an answer may be lost before the caller is told.
const maxLost = 3

// insist repeats what may be repeated as long as answers are lost: each time the
// session has found another connection.
func insist(ctx context.Context, f func() error) error {
	for tries := 1; ; tries++ {
		err := f()
		if !errors.Is(err, zksession.ErrLost) || tries == maxLost || ctx.Err() != nil {
			return err
		}
	}
}
