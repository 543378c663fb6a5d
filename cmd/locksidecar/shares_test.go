package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// detachedFor is how long an app of chaos detaches what it never attaches.
const detachedFor = time.Second

// chaos does all that takes part of a share, from several goroutines, until it is killed. It says how much it has done.
func chaos() error {
	for range 8 {
		go func() {
			for {
				_ = turmoil() // what has no room is refused
			}
		}()
	}
	for {
		fmt.Println("at work")
		time.Sleep(10 * time.Millisecond)
	}
}

func turmoil() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(200))*time.Millisecond)
	defer cancel()
	c, err := client.Dial(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	s, err := c.OpenSession(ctx, client.SessionOptions{})
	if err != nil {
		return err
	}
	for {
		name := fmt.Sprint("r", rand.IntN(10))
		switch rand.IntN(6) {
		case 0:
			for _, err := range c.Watch(ctx, "", 0) {
				if err != nil || rand.IntN(3) == 0 {
					break
				}
			}
		case 1:
			if l, err := s.Acquire(ctx, "once"+name, client.AcquireOptions{Once: &client.Once{Keep: time.Second}}); err == nil && rand.IntN(2) == 0 {
				_ = l.Conclude(ctx, pb.OutcomeState_FAILED, "")
			}
		case 2:
			l, err := s.Acquire(ctx, name, client.AcquireOptions{Detachable: true})
			if err != nil {
				return err
			}
			d, err := l.Detach(ctx, detachedFor)
			if err != nil {
				continue
			}
			switch rand.IntN(4) {
			case 0:
				_ = c.ReleaseHandle(ctx, d.GetHandle())
			case 1:
				_, _ = s.Attach(ctx, d.GetHandle())
			case 2:
				if l, err := s.Attach(ctx, d.GetHandle()); err == nil {
					_ = l.Release(ctx)
				}
			}
		case 3:
			_, _ = s.AcquireAll(ctx, []string{name, "other"}, client.AcquireOptions{Mode: client.Shared})
		case 4:
			few, stop := context.WithTimeout(ctx, time.Millisecond)
			_, _ = s.Acquire(few, name, client.AcquireOptions{})
			stop()
		default:
			if l, err := s.Acquire(ctx, name, client.AcquireOptions{MaxHold: 100 * time.Millisecond}); err == nil {
				_ = l.Release(ctx)
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// What the service account of the test may have.
const (
	shareOfSessions = 4
	shareOfHolds    = 6
	shareOfDetached = 3
	shareOfWatches  = 2
)

// fill takes all that its service account may have, and says what it was refused then, one in a line.
func fill() error {
	ctx := context.Background()
	c, err := client.Dial(ctx, "")
	if err != nil {
		return err
	}
	full := func(most int, take func(i int) error) error {
		for i := range most {
			if err := take(i); err != nil {
				return fmt.Errorf("after %d of %d: %w", i, most, err)
			}
		}
		err := take(most)
		if err == nil {
			return errors.New("one more")
		}
		fmt.Println(err)
		return nil
	}
	var sessions []*client.Session
	err = full(shareOfSessions, func(int) error {
		s, err := c.OpenSession(ctx, client.SessionOptions{})
		if err == nil {
			sessions = append(sessions, s)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = full(shareOfDetached, func(i int) error {
		l, err := sessions[0].Acquire(ctx, fmt.Sprint("detached", i), client.AcquireOptions{Detachable: true})
		if err != nil {
			return err
		}
		if _, err := l.Detach(ctx, time.Minute); err != nil {
			return errors.Join(err, l.Release(ctx))
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = full(shareOfHolds, func(i int) error {
		_, err := sessions[i%shareOfSessions].Acquire(ctx, fmt.Sprint("held", i), client.AcquireOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = full(shareOfWatches, func(int) error {
		begun := make(chan error, 1)
		go func() {
			for _, err := range c.Watch(ctx, "", 0) {
				select {
				case begun <- err:
				default:
				}
			}
		}()
		return <-begun
	})
	if err != nil {
		return err
	}
	fmt.Println("that is all")
	for { // until it is killed
		time.Sleep(time.Hour)
	}
}

// TestSharesAreGivenBack: whatever pods of a service account do, and however they end, afterwards nothing of theirs is
// counted, and another pod of the account may have all that the account may have, and no more. Meanwhile the pods of
// another account of the namespace find room.
func TestSharesAreGivenBack(t *testing.T) {
	n := newTestNode(t)
	self := n.pod("agent", "")
	agent := n.agent(self, append(onStore(t, testengine.Redis), "--allow-service-account", "*/*",
		"--max-sessions-per-service-account", fmt.Sprint(shareOfSessions), "--max-holds-per-service-account", fmt.Sprint(shareOfHolds),
		"--max-detached-per-service-account", fmt.Sprint(shareOfDetached), "--max-watches-per-service-account", fmt.Sprint(shareOfWatches),
		"--max-connections-per-service-account", "20")...)
	metrics := func() string {
		p := launchIn(t, 0, self, "curl", "-sS", "--unix-socket", n.socket, "http://locksidecar/metrics")
		p.wait()
		return p.out.String()
	}
	neighbour, in := n.app(n.pod("neighbour", "shop/orders"), "pairs")
	for round := range 3 {
		var pods []*program
		for i := range 3 {
			p, _ := n.app(n.pod(fmt.Sprintf("chaos-%d-%d", round, i), "shop/hostile"), "chaos")
			pods = append(pods, p)
		}
		for _, p := range pods {
			eventually(t, "it works", func() bool { return strings.Count(p.out.String(), "\n") > 50 })
		}
		measured(t, neighbour, in, "mine", 50)
		for _, p := range pods {
			p.signal(syscall.SIGKILL)
			p.wait()
		}
	}
	eventually(t, "nothing of theirs is counted", func() bool { return !strings.Contains(metrics(), "shop/hostile") })
	time.Sleep(detachedFor)
	p, _ := n.app(n.pod("heir", "shop/hostile"), "fill")
	eventually(t, "it has all", func() bool { return p.ended() || strings.Contains(p.out.String(), "that is all") })
	lines := strings.Split(p.out.String(), "\n")
	for i, want := range []string{"4 sessions per service account", "3 detached holds per service account", "6 holds per service account", "2 watches of one service account"} {
		if i >= len(lines) || !strings.Contains(lines[i], "at most "+want) {
			t.Errorf("no %q in %q, %s", want, lines, p.err)
		}
	}
	got := metrics()
	for _, want := range []string{`locksidecar_service_account_sessions{service_account="shop/hostile"} 4`, `locksidecar_service_account_holds{service_account="shop/hostile"} 6`,
		`locksidecar_principal_sessions{principal="namespace:shop"} 5`, `locksidecar_principal_holds{principal="namespace:shop"} 6`} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %s: %q", want, slices.DeleteFunc(strings.Split(got, "\n"), func(l string) bool { return !strings.Contains(l, "shop") }))
		}
	}
	if strings.Contains(agent.err.String(), "[ERROR]") {
		t.Errorf("the log: %s", agent.err)
	}
}
