package mysql

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestFirst(t *testing.T) {
	s := testengine.Shared(t, kinds[0])
	b := openWith(t, s.URL(), func(c string, d time.Duration, err error) { t.Log(c, d, err) })
	defer b.Close()
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 3 * time.Second, Sidecar: "x"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := l.Acquire(t.Context(), exclusive("r"))
	t.Log(g, err)
	t.Log(b.Get(t.Context(), "r"))
	t.Log(l.Heartbeat(t.Context()))
	t.Log(l.Release(t.Context(), "r", g.ID))
	g, err = l.Acquire(t.Context(), exclusive("r"))
	t.Log(g, err)
	q := exclusive("r")
	q.Mode = lock.Shared
	done := make(chan error)
	go func() { _, err := l.Acquire(context.Background(), q); done <- err }()
	time.Sleep(50 * time.Millisecond)
	t.Log(l.Release(t.Context(), "r", g.ID))
	t.Log(<-done)
	t.Log(l.Close(t.Context()))
}
