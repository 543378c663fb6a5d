package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// seat is a session of ours, and its node among the leases.
type seat struct {
	b    *Backend
	s    *zksession.Session  // the first
	all  *zksession.Sessions // of a lease; else nil
	node string
	data []byte

	mu      sync.Mutex
	version int32                        // of the node's data, as we wrote it last
	subs    map[string]map[*sub]struct{} // by path
	time    serverTime

	touched atomic.Bool // somebody else may have written the node, see forced.touch
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
	var err error
	if cfg.TTL == 0 {
		t.s, err = zksession.Open(ctx, cfg)
	} else if t.all, err = zksession.OpenSessions(ctx, cfg); err == nil {
		t.s = t.all.First()
	}
	if err != nil {
		return unavailable("open session", err)
	}
	if err := t.begin(ctx); err != nil {
		return errors.Join(err, t.close(context.WithoutCancel(ctx)))
	}
	return nil
}

// close ends the session, and with it all nodes.
func (t *seat) close(ctx context.Context) error {
	if t.all != nil {
		return t.all.Close(ctx)
	}
	return t.s.Close(ctx)
}

// overdue: see zksession.Sessions.
func (t *seat) overdue() bool { return t.all.Overdue() }

// begin makes the seat's node, which every session needs: a heartbeat writes it.
func (t *seat) begin(ctx context.Context) error {
	calls := t.b.tree.ancestors(t.b.tree.leases())
	own := zksession.Create(t.node, t.data, t.b.tree.acl, zksession.Ephemeral)
	made := zksession.Get(t.node)
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
		t.wrote(made.Stat)
	}
	return nil
}

// wrote takes what the server says of the node that we wrote.
func (t *seat) wrote(stat zksession.Stat) {
	t.mu.Lock()
	t.version = stat.Version
	t.mu.Unlock()
	t.time.saw(stat.Mtime, t.b.clock())
}

// beat writes the seat's node. A nil error means that the session is not over.
func (t *seat) beat(ctx context.Context) error {
	version := t.wroteVersion()
	set := zksession.Set(t.node, t.data, version)
	for {
		if err := t.s.Do(ctx, set); err != nil {
			return err
		}
		if !errors.Is(set.Err, zksession.ErrBadVersion) {
			break
		}
		before := version
		if version = t.wroteVersion(); version == before { // not another beat of ours, unless its answer was lost
			t.touched.Store(true)
			version = zksession.AnyVersion
		}
		set = zksession.Set(t.node, t.data, version)
	}
	if errors.Is(set.Err, zksession.ErrNoNode) { // somebody has deleted it by hand
		t.touched.Store(true)
		return t.begin(ctx)
	}
	if set.Err == nil {
		t.wrote(set.Stat)
	}
	return set.Err
}

// wroteVersion is the version of the node's data as we have left it.
func (t *seat) wroteVersion() int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version
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
// transaction, and when it was answered by our clock. It is only
// compared with other times of the server.
type serverTime struct {
	mu       sync.Mutex
	ms       int64
	answered time.Duration
}

func (t *serverTime) saw(ms int64, answered time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ms, t.answered = ms, answered
}

// since is how long ago something was at the server, at least. It is for people.
func (t *serverTime) since(ms int64, now time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	ago := time.Duration(t.ms-ms) * time.Millisecond
	return max(0, ago+now-t.answered-time.Millisecond)
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
