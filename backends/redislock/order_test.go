package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Requests for one lock keep their order where Redis has forgotten the scripts meanwhile, and each is carried out once.
func TestOrderWhereScriptsAreForgotten(t *testing.T) { again(t, testOrderWhereScriptsAreForgotten) }

func testOrderWhereScriptsAreForgotten(t testing.TB) {
	server := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, server.URL()+noGrace, 5*time.Minute)
	client := plain(t, strings.TrimPrefix(server.URL(), "redis://"))
	const together = 4
	for round := range 50 {
		r := lock.Resource(fmt.Sprint("r", round))
		g := hold(t, l, r)
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		p := &piece{more: true}
		ctx, cancel := context.WithCancel(lock.WithBurst(t.Context(), p))
		var all sync.WaitGroup
		var asked []lock.HoldID
		for i := range together {
			if i == together-1 {
				p.last()
			}
			q, queued := exclusive(r), make(chan struct{})
			asked = append(asked, q.ID)
			ctx := context.WithValue(ctx, lock.QueuedKey{}, sync.OnceFunc(func() { close(queued) }))
			all.Go(func() {
				if _, err := l.Acquire(ctx, q); !errors.Is(err, context.Canceled) {
					t.Errorf("Acquire: %v", err)
				}
			})
			<-queued
		}
		eventually(t, "all wait", func() error {
			st, err := b.Get(t.Context(), r)
			if err == nil && len(st.Waiters) < together {
				err = errors.New("not yet")
			}
			for i := 0; err == nil && i < together; i++ {
				if st.Waiters[i].ID != asked[i] {
					t.Errorf("round %d: number %d in the queue is another one", round, i)
				}
			}
			return err
		})
		cancel()
		all.Wait()
		if err := release(t.Context(), l, r, g.ID); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}
