package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// The number of a fence is that of the transaction that made the request's node
// (czxid), and a base. ZooKeeper's numbers begin at 2³² in every new ensemble, far
// below the microseconds since 1970 by which other stores count. So a node of ours
// has a base, which makes the number of that moment the microseconds since 1970.
//
// An ensemble counts slower than a clock does: one for each transaction, and 2³²,
// which is 72 minutes, for each election. So what another store, or a new ensemble,
// gives later is larger than what this one has given. And for what comes back from
// another store, whoever finds no other lease raises the base again.
//
// All who give fences must agree on the base. Each of them makes its node among the
// leases, and then writes the node of the base, with the version that it has read,
// also where it changes nothing. So whoever has seen no other lease, and raises the
// base, is refused if another one has read it meanwhile. The same transaction writes the
// base into the node of the lease: should somebody delete the node of the base, whoever
// comes next learns it from those who count by it. The base is read before the leases are
// listed: who has written the version that was read is in the list. And both are read behind a
// write of ours (our node, or a transaction that was refused), so a server that lags shows no
// less than that.

// baseRecord is the data of the base's node.
type baseRecord struct {
	Version int   `json:"locksidecar"`
	Base    int64 `json:"fence_base"`
}

// maxBaseTries bounds how often somebody else may be faster.
const maxBaseTries = 100

// lastWall is a time at which no fence is too large. A wall clock behind it is wrong.
var lastWall = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// findBase learns the base of fences, and chooses it where nobody else can have.
func (t *leaseNode) findBase(ctx context.Context) error {
	node := t.b.tree.base()
	for range maxBaseTries {
		get, leases := zksession.Get(node), zksession.Children(t.b.tree.leases())
		if err := t.s.Do(ctx, get, leases); err != nil {
			return unavailable("choose the base of fences", err)
		}
		if err := leases.Err; err != nil {
			return unavailable("choose the base of fences", err)
		}
		t.mu.Lock()
		highest := min(t.b.wall().UnixMicro(), lastWall) - t.zxid
		t.mu.Unlock()
		var rec baseRecord
		var put *zksession.Call
		switch {
		case errors.Is(get.Err, zksession.ErrNoNode):
			base, err := t.baseOfOthers(ctx, leases.Children)
			if err != nil {
				return unavailable("choose the base of fences", err)
			}
			if rec.Base = base; base == 0 {
				rec.Base = highest
			}
			put = zksession.Create(node, rec.encode(), t.b.tree.acl, zksession.Persistent)
		case get.Err != nil:
			return unavailable("choose the base of fences", get.Err)
		default:
			if json.Unmarshal(get.Data, &rec) != nil || rec.Version != recordVersion {
				return unavailable("choose the base of fences", fmt.Errorf("the node %s has other data than ours", node))
			}
			if len(leases.Children) == 1 {
				rec.Base = max(rec.Base, highest)
			}
			put = zksession.Set(node, rec.encode(), get.Stat.Version)
		}
		own := t.rec
		own.Base = rec.Base
		note := zksession.Set(t.path, own.encode(), zksession.AnyVersion)
		both := zksession.Multi(put, note)
		switch err := t.s.Do(ctx, both); {
		case err != nil && !errors.Is(err, zksession.ErrLost):
			return unavailable("choose the base of fences", err)
		case err == nil && both.Err == nil:
			t.base, t.rec = rec.Base, own
			t.wrote(note.Stat)
			return nil
		case err == nil && !errors.Is(both.Err, zksession.ErrBadVersion) && !errors.Is(both.Err, zksession.ErrNodeExists):
			return unavailable("choose the base of fences", both.Err)
		}
	}
	return unavailable("choose the base of fences", fmt.Errorf("others have changed it %d times meanwhile", maxBaseTries))
}

// baseOfOthers is the base that others count by; 0: nobody does.
func (t *leaseNode) baseOfOthers(ctx context.Context, leases []string) (base int64, err error) {
	var calls []*zksession.Call
	for _, l := range leases {
		calls = append(calls, zksession.Get(t.b.tree.leases()+"/"+l))
	}
	if err := doAll(ctx, t, calls); err != nil {
		return 0, err
	}
	for _, c := range calls {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
			return 0, fmt.Errorf("%s: %w", c, c.Err)
		}
		base = max(base, decodeLease(c.Data).Base)
	}
	return base, nil
}

func (r baseRecord) encode() []byte {
	r.Version = recordVersion
	return encode(r)
}

// fence is that of a hold. d.mu is held.
func (d *driver) fence(s *spot) lock.Fence {
	if s.key != "" {
		return s.rec.Fence
	}
	f := d.leaseNode.fence(s.czxid)
	if s.rec.Slot != nil {
		f += lock.Fence(*s.rec.Slot)
	}
	return f
}

// fence is that of a node.
func (t *leaseNode) fence(czxid int64) lock.Fence { return lock.FenceOf(t.base + czxid) }
