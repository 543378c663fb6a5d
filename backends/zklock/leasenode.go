package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// leaseNode is a session of ours with its node among the leases, and what it watches.
type leaseNode struct {
	b    *Backend
	s    *zksession.Session
	path string
	rec  leaseRecord // what it writes into its node
	base int64       // of fences, see fence.go

	mu       sync.Mutex
	version  int32                // of the node's data, as we wrote it last
	zxid     int64                // that made it
	told     []forcedNode         // what others have written there, and nobody has taken yet
	more     bool                 // and there was more of it, or the node was deleted
	watchers map[string][]watcher // by path
	time     serverTime
}

// newLeaseNode makes a lease node that notes rec in its node.
func (b *Backend) newLeaseNode(id lock.LeaseID, rec leaseRecord) *leaseNode {
	return &leaseNode{b: b, path: b.tree.lease(id), rec: rec, watchers: make(map[string][]watcher)}
}

// config is how its session is opened.
func (t *leaseNode) config() zksession.Config {
	c := &t.b.cfg
	config := zksession.Config{
		Addrs: c.addrs, Digest: c.digestNow(), Timeout: c.timeout,
		Clock: t.b.clock, OnEvent: t.event, Observe: t.b.observe,
	}
	if c.tls != nil {
		config.TLS = c.tls.Config
	}
	return config
}

// take takes the session, and makes the node.
func (t *leaseNode) take(ctx context.Context, s *zksession.Session) error {
	t.s = s
	if err := t.begin(ctx); err != nil {
		return err
	}
	return t.findBase(ctx)
}

// begin makes the node, which every session needs: a heartbeat writes it. The
// server may remove the node above it in between, when that has just become empty.
func (t *leaseNode) begin(ctx context.Context) error {
	for tries := 1; ; tries++ {
		calls := t.b.tree.ancestors(t.b.tree.leases())
		own := zksession.Create(t.path, t.rec.encode(), t.b.tree.acl, zksession.Ephemeral)
		made := zksession.Get(t.path)
		if err := t.s.Chase(ctx, append(calls, own, made)...); err != nil {
			return unavailable("open lease", err)
		}
		why := own.Err
		if why == nil {
			why = made.Err
		}
		if why == nil {
			t.wrote(made.Stat)
			return nil
		}
		for _, c := range calls { // the first that failed is the reason
			if c.Err != nil && !errors.Is(c.Err, zksession.ErrNodeExists) {
				return unavailable("open lease", c.Err)
			}
		}
		if !errors.Is(why, zksession.ErrNoNode) || tries == maxTries {
			return unavailable("open lease", why)
		}
	}
}

// wrote takes what the server says of the node that we wrote.
func (t *leaseNode) wrote(stat zksession.Stat) {
	t.mu.Lock()
	t.version, t.zxid = stat.Version, stat.Czxid
	t.mu.Unlock()
	t.time.saw(stat.Mtime, t.b.clock())
}

// beat writes the node. A nil error means that a majority knows the session.
// What others have written there is kept for news.
func (t *leaseNode) beat(ctx context.Context) error {
	t.mu.Lock()
	version := t.version
	t.mu.Unlock()
	for {
		set := zksession.Set(t.path, t.rec.encode(), version)
		if err := t.s.Do(ctx, set); err != nil {
			return err
		}
		switch {
		case errors.Is(set.Err, zksession.ErrBadVersion):
			get := zksession.Get(t.path)
			if err := t.s.Do(ctx, get); err != nil {
				return err
			}
			if version = zksession.AnyVersion; get.Err == nil {
				version = get.Stat.Version
				t.hear(decodeLease(get.Data))
			}
		case errors.Is(set.Err, zksession.ErrNoNode): // somebody has deleted it by hand
			t.hear(leaseRecord{More: true})
			return t.begin(ctx)
		default:
			if set.Err == nil {
				t.wrote(set.Stat)
			}
			return set.Err
		}
	}
}

func (t *leaseNode) hear(r leaseRecord) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told, t.more = append(t.told, r.Forced...), t.more || r.More
}

// news takes what others have written into the node.
func (t *leaseNode) news() (told []forcedNode, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	told, more = t.told, t.more
	t.told, t.more = nil, false
	return told, more
}

// heard are those of them that nobody has taken yet.
func (t *leaseNode) heard() []forcedNode {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.told)
}

// watcher wants to know when a node is changed or deleted. It is called on the
// goroutine that reads from the server: it must not block.
type watcher interface{ changed(deleted bool) }

// event tells those who want to know of a node.
func (t *leaseNode) event(ev zksession.Event) {
	t.mu.Lock()
	all := slices.Clone(t.watchers[ev.Path])
	t.mu.Unlock()
	for _, w := range all {
		w.changed(ev.Deleted)
	}
}

// subscribe has w told of every change of a node that is watched. It must come
// before the watch is set.
func (t *leaseNode) subscribe(path string, w watcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.watchers[path], w) {
		t.watchers[path] = append(t.watchers[path], w)
	}
}

func (t *leaseNode) unsubscribe(path string, w watcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchers[path] = slices.DeleteFunc(t.watchers[path], func(o watcher) bool { return o == w })
	if len(t.watchers[path]) == 0 {
		delete(t.watchers, path)
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

// refresh asks for the server's time when the last answer with it is old.
// A lease's heartbeats see to that.
func (t *leaseNode) refresh(ctx context.Context) error {
	const fresh = time.Minute
	t.time.mu.Lock()
	known := t.b.clock()-t.time.answered < fresh
	t.time.mu.Unlock()
	if known {
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
// session has found another connection. When ctx ends, it is repeated once more.
func insist(ctx context.Context, f func() error) error {
	for tries := 1; ; tries++ {
		ended := ctx.Err() != nil
		err := f()
		if !errors.Is(err, zksession.ErrLost) || tries == maxLost || ended {
			return err
		}
	}
}
