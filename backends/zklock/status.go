package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// maxBatch bounds how many requests are sent together.
const maxBatch = 512

// maxHead bounds how many holders a refusal names.
const maxHead = 64

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	path, err := b.tree.lockPath(r)
	if err != nil {
		return lock.Status{}, err
	}
	var st lock.Status
	err = b.ask(ctx, func(t *leaseNode) (err error) { st, err = b.statusOf(ctx, t, r, path); return err })
	if err != nil {
		return lock.Status{}, unavailable("get lock", err)
	}
	return st, nil
}

// statusOf reads one lock, as the leader has it.
func (b *Backend) statusOf(ctx context.Context, t *leaseNode, r lock.Resource, path string) (st lock.Status, err error) {
	if err := t.refresh(ctx); err != nil {
		return st, err
	}
	for tries := 1; ; tries++ {
		sync, queue := zksession.Sync(b.tree.leases()), zksession.Children(path)
		if err := t.s.Do(ctx, sync, queue); err != nil {
			return st, err
		}
		if err := errors.Join(sync.Err, queue.Err); err != nil && !errors.Is(err, zksession.ErrNoNode) {
			return st, err
		}
		reading := b.newReading(r, path, parseAll(queue.Children))
		if err := reading.read(ctx, t); err != nil {
			return st, err
		}
		if !reading.moved() || tries == maxTries {
			return reading.status(t), nil
		}
	}
}

// reading is a lock whose nodes are being read.
type reading struct {
	b     *Backend
	r     lock.Resource
	path  string
	nodes []node
	calls []*zksession.Call // one a node
}

func (b *Backend) newReading(r lock.Resource, path string, nodes []node) *reading {
	rd := &reading{b: b, r: r, path: path, nodes: nodes}
	for _, n := range nodes {
		rd.calls = append(rd.calls, zksession.Get(path+"/"+n.name))
	}
	return rd
}

func (rd *reading) read(ctx context.Context, t *leaseNode) error { return doAll(ctx, t, rd.calls) }

// doAll sends any number of calls.
func doAll(ctx context.Context, t *leaseNode, calls []*zksession.Call) error {
	for some := range slices.Chunk(calls, maxBatch) {
		if err := t.s.Together(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

func (rd *reading) downgraded() bool {
	if len(rd.nodes) == 0 {
		return false
	}
	rec, _ := decodeRecord(rd.calls[0].Data)
	return rec.Downgraded
}

// moved reports whether a node has gone meanwhile whose place another one may have taken.
func (rd *reading) moved() bool {
	for i, n := range rd.nodes {
		if n.loose && errors.Is(rd.calls[i].Err, zksession.ErrNoNode) {
			return true
		}
	}
	return false
}

// hasRequest reports whether the request was there of which the node at place i may be left. It stands behind that.
func (rd *reading) hasRequest(i int) bool {
	return i+1 < len(rd.nodes) && rd.nodes[i+1].id == rd.nodes[i].id && rd.nodes[i+1].seq == rd.nodes[i].seq &&
		!errors.Is(rd.calls[i+1].Err, zksession.ErrNoNode)
}

// status tells what was read. Nodes that have gone meanwhile are left out.
func (rd *reading) status(t *leaseNode) lock.Status {
	st := lock.Status{Resource: rd.r}
	now := rd.b.clock()
	var nodes []node
	var all []lock.Holding
	downgraded := false
	for i, n := range rd.nodes {
		c := rd.calls[i]
		if errors.Is(c.Err, zksession.ErrNoNode) {
			continue
		}
		var left time.Duration
		if n.kept {
			if left = t.leftFor(n, c); left <= 0 || rd.hasRequest(i) {
				continue
			}
		}
		rec, _ := decodeRecord(c.Data) // another program's has no such fields
		h := lock.Holding{
			ID: n.id, Mode: lock.Exclusive, Fence: t.fence(c.Stat.Czxid), Lease: rec.Lease, Sidecar: rec.Sidecar,
			Owner: lock.DecodeOwner(string(rec.Owner)), Revoked: rec.Revoked != nil,
			Cohort: rec.Cohort, Kept: left, Detached: n.kept && n.key != "",
		}
		switch {
		case n.limit > 0:
			h.Mode = lock.Permits(n.limit)
		case n.shared || rec.Downgraded:
			h.Mode = lock.Shared
		}
		h.Age = t.time.since(c.Stat.Ctime, now)
		if c.Err != nil { // it may not be read
			h.Fence, h.Age = 0, 0
		}
		h.Age = max(0, h.Age-time.Duration(rec.Waited)*time.Millisecond)
		if age, ok := rd.b.heldHere(n.id, now); ok {
			h.Age = age
		}
		if n.limit > 0 && rec.Slot != nil {
			h.Fence += lock.Fence(*rec.Slot)
		}
		if n.kept || n.key != "" {
			h.Fence = rec.Fence
		}
		if n.limit > 0 && (rec.Slot != nil || n.kept) {
			st.Holders = append(st.Holders, h)
			continue
		}
		if len(nodes) == 0 {
			downgraded = rec.Downgraded
		}
		nodes, all = append(nodes, n), append(all, h)
	}
	n := holders(nodes, downgraded)
	if len(st.Holders) > 0 || n > 0 && nodes[0].limit > 0 { // who has no slot yet waits
		n = 0
	}
	st.Holders, st.Waiters = append(st.Holders, all[:n]...), append(st.Waiters, all[n:]...)
	for i := range st.Waiters {
		st.Waiters[i].Fence = 0
	}
	return st
}

// heldHere is the age of a hold of one of this backend's leases, which is known
// better here than from the store.
func (b *Backend) heldHere(id lock.HoldID, now time.Duration) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.drivers {
		d.mu.Lock()
		s := d.spots[id]
		held := s != nil && s.held
		age := time.Duration(0)
		if held {
			age = now - s.granted
		}
		d.mu.Unlock()
		if held {
			return age, true
		}
	}
	return 0, false
}

// List implements lock.Backend.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := p.Most()
	var out []lock.Status
	err := b.ask(ctx, func(t *leaseNode) (err error) { out, err = b.list(ctx, t, prefix, p.After, limit); return err })
	if err != nil {
		return nil, unavailable("list locks", err)
	}
	return out, nil
}

func (b *Backend) list(ctx context.Context, t *leaseNode, prefix string, after lock.Resource, limit int) ([]lock.Status, error) {
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	if err := t.s.Do(ctx, zksession.Sync(b.tree.leases())); err != nil {
		return nil, err
	}
	names, err := b.names(ctx, t, prefix)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(r lock.Resource) bool { return r <= after || !strings.HasPrefix(string(r), prefix) })
	slices.Sort(names)
	var out []lock.Status
	for some := range slices.Chunk(names, maxBatch) {
		all, err := b.statuses(ctx, t, some)
		if err != nil {
			return nil, err
		}
		if out = append(out, all...); len(out) >= limit {
			return out[:limit], nil
		}
	}
	return out, nil
}

// statuses reads those of some locks that are held.
func (b *Backend) statuses(ctx context.Context, t *leaseNode, names []lock.Resource) ([]lock.Status, error) {
	queues := make([]*zksession.Call, len(names))
	paths := make([]string, len(names))
	for i, r := range names {
		path, err := b.tree.lockPath(r)
		if err != nil {
			return nil, err
		}
		paths[i], queues[i] = path, zksession.Children(path)
	}
	if err := doAll(ctx, t, queues); err != nil {
		return nil, err
	}
	if err := unlisted(queues); err != nil {
		return nil, err
	}
	var all []*reading
	var calls []*zksession.Call
	for i, q := range queues {
		if nodes := parseAll(q.Children); len(nodes) > 0 {
			rd := b.newReading(names[i], paths[i], nodes)
			all, calls = append(all, rd), append(calls, rd.calls...)
		}
	}
	if err := doAll(ctx, t, calls); err != nil {
		return nil, err
	}
	var out []lock.Status
	for _, rd := range all {
		st := rd.status(t)
		if rd.moved() {
			var err error
			if st, err = b.statusOf(ctx, t, rd.r, rd.path); err != nil {
				return nil, err
			}
		}
		if len(st.Holders) > 0 {
			out = append(out, st)
		}
	}
	return out, nil
}

// unlisted is why not all nodes could be listed: a list that leaves locks out without
// a word would be worse than none. What is not there has none.
func unlisted(lists []*zksession.Call) error {
	for _, c := range lists {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
			return fmt.Errorf("%s: %w", c, c.Err)
		}
	}
	return nil
}

// names are the resources that have a node, held or not.
func (b *Backend) names(ctx context.Context, t *leaseNode, prefix string) ([]lock.Resource, error) {
	if b.tree.curator {
		return b.walk(ctx, t, prefix)
	}
	return namesBelow(ctx, t, b.tree.locks())
}

// namesBelow are the names in all buckets below a node.
func namesBelow(ctx context.Context, t *leaseNode, path string) ([]lock.Resource, error) {
	root := zksession.Children(path)
	if err := t.s.Do(ctx, root); err != nil {
		return nil, err
	}
	var buckets []*zksession.Call
	for _, bucket := range root.Children {
		buckets = append(buckets, zksession.Children(path+"/"+bucket))
	}
	if err := doAll(ctx, t, buckets); err != nil {
		return nil, err
	}
	if err := unlisted(append(buckets, root)); err != nil {
		return nil, err
	}
	var names []lock.Resource
	for _, c := range buckets {
		for _, name := range c.Children {
			if r, ok := unescape(name); ok {
				names = append(names, r)
			}
		}
	}
	return names, nil
}

// walk goes through the tree below the chroot, as far as names may begin with
// prefix, and gives the nodes that have requests below them.
func (b *Backend) walk(ctx context.Context, t *leaseNode, prefix string) ([]lock.Resource, error) {
	var names []lock.Resource
	level := []string{""} // names, each with a slash behind it
	for len(level) > 0 {
		calls := make([]*zksession.Call, len(level))
		for i, name := range level {
			calls[i] = zksession.Children(joinName(b.tree.root, name))
		}
		if err := doAll(ctx, t, calls); err != nil {
			return nil, err
		}
		if err := unlisted(calls); err != nil {
			return nil, err
		}
		var next []string
		for i, c := range calls {
			locked := false
			for _, child := range c.Children {
				if _, ok := parseNode(child); ok {
					locked = true
					continue
				}
				if level[i] == "" && (child == home || child == "zookeeper" && b.tree.root == "") {
					continue
				}
				if name := level[i] + child + "/"; strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name) {
					next = append(next, name)
				}
			}
			if locked && level[i] != "" {
				names = append(names, lock.Resource(strings.TrimSuffix(level[i], "/")))
			}
		}
		level = next
	}
	return names, nil
}

// joinName is the path of a name with a slash behind it; the root where it is empty.
func joinName(root, name string) string {
	if p := root + "/" + strings.TrimSuffix(name, "/"); p != root+"/" || root == "" {
		return p
	}
	return root
}
