package leasekit

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// One server of several does not answer to the heartbeat: what another one says is
// told all the same, and is acknowledged once there is an answer.
func TestNewsBesideAFailure(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, 4*time.Second)
		k.f.change(func() { k.f.partial = true })
		news, err := k.Heartbeat(k.t.Context())
		k.is("Heartbeat", err, lock.ErrUnavailable)
		k.same("its news", news, revoked(g, k.clock()+4*time.Second))
		k.f.change(func() { k.f.partial = false })
		k.beat()
		if n := len(k.f.acknowledged()); n == 0 {
			t.Error("it was not acknowledged")
		}
	})
}

// Another server is noticed beside a failure: it is compared before a heartbeat
// counts, although it is not said again.
func TestStrangerBesideAFailure(t *testing.T) {
	bubble(t, func(k *kit) {
		lost := k.acquire("lost")
		k.f.lose(lost.ID)
		k.f.change(func() { k.f.stranger, k.f.partial, k.f.entriesN = true, true, 1 })
		_, err := k.Heartbeat(k.t.Context())
		k.is("Heartbeat", err, lock.ErrUnavailable)
		k.f.change(func() { k.f.partial = false })
		k.same("the next", k.beat(), vanished(lost))
	})
}
