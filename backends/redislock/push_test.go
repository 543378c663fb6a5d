package redislock

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A push connection on which nothing arrives any more is found out by the heartbeats, which arrive,
// and another takes its place.
func TestDeadPushConnectionIsReplaced(t *testing.T) { again(t, testDeadPushConnectionIsReplaced) }

func testDeadPushConnectionIsReplaced(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL()+noGrace, 30*time.Second)
	hold(t, l, "dead-push-connection")
	direct := openBackend(t, s.URL())
	subscribed := func() int {
		calls, err := commandCalls(t.Context(), direct.client)
		if err != nil {
			t.Fatal(err)
		}
		return calls["subscribe"]
	}
	before := subscribed()
	road.Mute("subscribe")
	defer func() { _ = road.Heal() }()
	eventually(t, "it subscribes again", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		if n := subscribed(); n == before {
			return fmt.Errorf("%d subscriptions so far", n)
		}
		return nil
	})
}

// While nothing of the lease is in the store, the push connection is asked for a sign of life from time
// to time only.
func TestPushConnectionAtRest(t *testing.T) { again(t, testPushConnectionAtRest) }

func testPushConnectionAtRest(t testing.TB) {
	b := openBackend(t, testengine.Shared(t, testengine.Redis).URL()+noGrace)
	d := lone(t, b, time.Minute)
	sub := b.client.Subscribe(t.Context(), "at-rest")
	defer func() { _ = sub.Close() }()
	d.ear.Store(&ear{sub: sub})
	due := func() bool {
		t.Helper()
		eventually(t, "a heartbeat is answered", func() error {
			_, err := d.Renew(t.Context(), nil)
			return err
		})
		select {
		case <-d.probes:
			return true
		default:
			return false
		}
	}
	d.ear.Load().last.Store(int64(b.clock()))
	if due() {
		t.Error("it is asked right after it was")
	}
	d.ear.Load().last.Store(int64(b.clock() - restPause))
	if !due() {
		t.Error("it is not asked though the pause is over")
	}
	d.probe(t.Context())
	if !due() {
		t.Error("nobody looks whether it has answered")
	}
	d.ear.Load().asked.Store(0)
	if due() {
		t.Error("it is asked again though it has answered")
	}
	if a, err := d.Ask(t.Context(), exclusive(lock.Resource("at-rest/"+d.id))); err != nil || !a.Granted {
		t.Fatalf("Ask: %+v, %v", a, err)
	}
	if !due() {
		t.Error("it is not asked though something may be pushed")
	}
}
