package zklock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/lock"
)

// overwrite writes into the node of a hold, as Curator's Revoker does.
func overwrite(t testing.TB, b *Backend, c *zk.Conn, url string, r lock.Resource, id lock.HoldID) (path string) {
	t.Helper()
	path, _ = b.tree.lockPath(r)
	for _, n := range nodes(t, b, url, r) {
		if own, request := parseNode(n); request && own.id == id && !own.kept {
			path += "/" + n
		}
	}
	if _, err := c.Set(path, []byte("__REVOKE__"), -1); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestForcedAfterOthersWrote: another program has written into the node of a hold, and
// nothing comes through to the holder's sidecar. Its forced release has to wait for it all
// the same.
func TestForcedAfterOthersWrote(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, road := newRoad(t, url)
		_, l := sidecar(t, road+options, 6*time.Second)
		a := live(t, l)
		r := unique()
		g := hold(t, l, r, lock.Exclusive)
		b2, l2 := sidecar(t, url+options, 15*time.Second)
		live(t, l2)
		w := queue(t, b2, l2, request(r, lock.Exclusive))
		way.silent(true)
		overwrite(t, b2, stranger(t, url), url, r, g.ID)
		force(t, b2, g, time.Second)
		w.grantedAfter(a, g.ID)
		way.silent(false)
	})
}

// TestWhatOthersWroteIsReplaced: the node of a hold has its data again, and its forced
// release is told.
func TestWhatOthersWroteIsReplaced(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		b, l := sidecar(t, url+options, 15*time.Second)
		a := live(t, l)
		r := unique()
		g := hold(t, l, r, lock.Exclusive)
		c := stranger(t, url)
		path := overwrite(t, b, c, url, r, g.ID)
		eventually(t, "the node has its data", func() error {
			data, _, err := c.Get(path)
			if rec, ours := decodeRecord(data); err == nil && (!ours || rec.Lease != l.ID()) {
				return errors.New("it has other data")
			}
			return err
		})
		forced, _ := force(t, b, g, 200*time.Millisecond)
		a.revoked(g.ID, lock.BootTime()+time.Minute)
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
		if err := l.Release(context.WithoutCancel(t.Context()), r, g.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release: %v", err)
		}
	})
}
