package localapi

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestLongLinesAreNotKept: what an app writes around a request is not kept with its lock.
func TestLongLinesAreNotKept(t *testing.T) {
	s := start(t, noNews)
	x := s.says(t, opening)
	x.answer()
	const n = 60
	padding := strings.Repeat(" ", 60<<10)
	before := used()
	for i := range n {
		x.say(fmt.Sprintf(`{"requestId":"%d",%s"acquire":{"resource":"r/%d","owner":"o"}}`+"\n", i, padding, i))
		if x.answer().GetGranted() == nil {
			t.Fatal("not granted")
		}
	}
	if took := used() - before; took > n*10<<10 {
		t.Errorf("%d locks take %d KiB", n, took>>10)
	}
}

// TestLinesToWhoListensNoMore: an app that has closed its ears only would get locks, and
// no news of them. Its session ends.
func TestLinesToWhoListensNoMore(t *testing.T) {
	s := start(t)
	x := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"r"}}`+"\n")
	x.answer()
	x.answer()
	if err := x.c.CloseRead(); err != nil {
		t.Fatal(err)
	}
	x.say(`{"requestId":"2","acquire":{"resource":"s"}}` + "\n")
	eventually(t, "ended", func() bool { return s.manager.Info().Sessions == 0 && s.manager.Info().Holds == 0 })
}

// mute is a store that does not answer to releases.
type mute struct {
	lock.Backend
	asked  chan struct{}
	gaveUp atomic.Int32
}

func (b *mute) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &muteLease{Lease: l, b: b}, err
}

type muteLease struct {
	lock.Lease
	b *mute
}

func (l *muteLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	l.b.asked <- struct{}{}
	<-ctx.Done()
	l.b.gaveUp.Add(1)
	return fmt.Errorf("%w: %w", lock.ErrUnavailable, ctx.Err())
}

// TestLossIsToldWhileReleasesWait: a client that has as many requests in flight as it may
// is told of a loss while the store does not answer to one more.
func TestLossIsToldWhileReleasesWait(t *testing.T) {
	for range 5 { // a machine may stand still for as long as a release is waited for
		b := &mute{asked: make(chan struct{}, 100)}
		s := start(t, noNews, func(o *session.Options, l *Options) {
			b.Backend, o.Backend = o.Backend, b
			l.Limits.InFlight = 2
		})
		x := s.says(t, opening)
		x.answer()
		var ids []string
		for i := range 4 {
			x.say(fmt.Sprintf(`{"requestId":"a%d","acquire":{"resource":"r/%d"}}`+"\n", i, i))
			ids = append(ids, x.answer().GetGranted().GetLockId())
		}
		for i := range 3 {
			x.say(fmt.Sprintf(`{"requestId":"r%d","release":{"lockId":"%s"}}`+"\n", i, ids[i]))
			within(t, b.asked)
		}
		if _, err := s.manager.Everybody().ForceRelease(t.Context(), "r/3", "", 0); err != nil {
			t.Fatal(err)
		}
		if id := x.hears().GetEvent().GetLost().GetLockId(); id == ids[3] && b.gaveUp.Load() == 0 {
			return
		}
	}
	t.Error("the loss is told when the releases are over")
}

// TestAThousandRequestsInOneWrite: each is answered, in few writes.
func TestAThousandRequestsInOneWrite(t *testing.T) {
	s := start(t)
	x := s.says(t, opening)
	x.answer()
	var all strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&all, `{"requestId":"%d","acquire":{"resource":"r/%d","wait":"0s"}}`+"\n", i, i)
	}
	go func() { _, _ = io.WriteString(x.c, all.String()) }()
	for i := range 1000 {
		if a := x.answer(); a.GetRequestId() != fmt.Sprint(i) || a.GetGranted() == nil {
			t.Fatalf("%v, want request %d", a, i)
		}
	}
}
