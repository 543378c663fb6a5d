package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A server that is down is asked for news less and less often, also where somebody waits: all
// sidecars do so, and it has to come back.
func TestFewConnectionsWhereTheServerIsDown(t *testing.T) {
	t.Parallel()
	road := testengine.Through(t, testengine.Shared(t, testengine.MariaDB))
	b, l := sidecar(t, road.URL(), 30*time.Second)
	r := unique("down")
	hold(t, l, r)
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	defer waits.Wait()
	defer cancel()
	waits.Go(func() { _, _ = l.Acquire(ctx, exclusive(r)) })
	eventually(t, "it waits", func() error {
		if st, err := b.Get(ctx, r); err != nil || len(st.Waiters) != 1 {
			return errors.Join(fmt.Errorf("%+v", st), err)
		}
		return nil
	})
	connects := testengine.Refuse(t, road)
	const down, most = 2 * time.Second, 30
	time.Sleep(down)
	if n := connects(); n == 0 || n > most {
		t.Errorf("a sidecar has made %d connections in %s to a server that is down, want 1 to %d", n, down, most)
	}
}

// failing is a dialect whose bells cannot be listened for.
type failing struct {
	sqllock.Dialect
	tries *atomic.Int64
}

func (f failing) Listen(context.Context, lock.LeaseID, string, func()) error {
	f.tries.Add(1)
	return errors.New("the connection is closed")
}

// Each heartbeat that is answered has the bell listened for, however long the pause between
// the tries has become: sixteen tries would take half a minute.
func TestHeartbeatBringsTheBellBack(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	s := testengine.Shared(t, testengine.MariaDB)
	b, err := sqllock.Open(failing{New(mustParse(t, s.URL()), nil), &tries}, sqllock.Options{Migrate: true, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	eventually(t, "the bell was listened for sixteen times", func() error {
		if n := tries.Load(); n < 16 {
			_, err := l.Heartbeat(t.Context())
			return errors.Join(fmt.Errorf("%d times", n), err)
		}
		return nil
	})
}
