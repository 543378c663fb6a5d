package zksession

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// servers says to which server the library connects next, and when. It is a
// zk.HostProvider.
type servers struct {
	s      *Session
	failed chan error    // of the first round, when no server of it would have us
	wake   chan struct{} // somebody wants a connection

	// Of the library's goroutine alone.
	round  []string // addresses not tried in this round
	last   string   // address that was tried last
	pause  time.Duration
	rounds int

	mu       sync.Mutex
	names    map[string]string // host name of an address
	problems []error           // of this round
}

func newServers(s *Session) *servers {
	return &servers{s: s, failed: make(chan error, 1), wake: make(chan struct{}, 1), names: make(map[string]string)}
}

// Init implements zk.HostProvider. The library has changed the order; ours is new
// for every round.
func (v *servers) Init([]string) error { return nil }

// Len implements zk.HostProvider.
func (v *servers) Len() int { return len(v.s.cfg.Addrs) }

// Connected implements zk.HostProvider.
func (v *servers) Connected() {
	v.pause, v.round = 0, nil
	v.mu.Lock()
	v.problems = nil
	v.mu.Unlock()
}

// Next implements zk.HostProvider. It waits here, because the library would do
// so for a second. When the session is over it says that all have been tried,
// which is where the library looks whether it was closed.
func (v *servers) Next() (addr string, tried bool) {
	for {
		for {
			wait := v.s.wanted()
			if wait == 0 {
				break
			}
			select {
			case <-v.wake:
			case <-time.After(wait):
			case <-v.s.done:
				return v.last, true
			}
		}
		select {
		case <-v.s.done:
			return v.last, true
		default:
		}
		if len(v.round) == 0 {
			if v.rounds++; v.rounds > 1 {
				v.finish()
				v.sleep()
			}
			v.round = v.resolve()
			continue
		}
		v.last, v.round = v.round[0], v.round[1:]
		return v.last, false
	}
}

// poke has Next look again.
func (v *servers) poke() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// finish tells Open that all servers were tried.
func (v *servers) finish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := errors.Join(v.problems...)
	v.problems = nil
	if err == nil {
		return // this round began with a connection
	}
	select {
	case v.failed <- err:
	default:
	}
}

// The pauses between rounds grow.
const (
	minPause = 10 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

func (v *servers) sleep() {
	t := time.NewTimer(v.pause/2 + rand.N(v.pause/2+1)) //nolint:gosec // not a secret
	defer t.Stop()
	v.pause = min(max(2*v.pause, minPause), maxPause)
	select {
	case <-t.C:
	case <-v.s.done:
	}
}

// refused notes why a server would not have us.
func (v *servers) refused(addr string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.problems = append(v.problems, fmt.Errorf("%s: %w", addr, err))
}

// host is the name that an address was found by.
func (v *servers) host(addr string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.names[addr]
}

// resolve makes a round: all servers in random order, the one at last after all
// others.
func (v *servers) resolve() []string {
	ctx, cancel := context.WithTimeout(context.Background(), v.s.cfg.Timeout)
	defer cancel()
	var all, late []string
	for _, a := range v.s.cfg.Addrs {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			all = append(all, a) // dialling it tells the error
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			ips = []string{host} // the same
		}
		for _, ip := range ips {
			addr := net.JoinHostPort(ip, port)
			v.mu.Lock()
			v.names[addr] = host
			v.mu.Unlock()
			if addr == v.last {
				late = append(late, addr)
			} else {
				all = append(all, addr)
			}
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) //nolint:gosec // spreads clients, is no secret
	return append(all, late...)
}
