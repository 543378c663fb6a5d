package redislock

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

// servers keeps an eye on which Redis processes answer.
//
// A Redis that was restarted may have forgotten grants: all of them without
// persistence, the latest with it. Its memory cannot tell, but its uptime can.
// So no grant is handed to an app while a server's uptime is below the restart
// grace: by then every lease from before the restart has either been renewed
// and compared with what the store remembers, or is over. The same habit is
// known as the grace period of NFS lock servers and of Chubby.
type servers struct {
	clock lock.Clock

	latest atomic.Int64 // when the youngest server started, on clock

	mu       sync.Mutex
	known    map[string]bool // run ids, each a server process
	eviction string          // the last maxmemory-policy that would evict locks, or empty
}

func newServers(clock lock.Clock) *servers {
	s := &servers{clock: clock, known: make(map[string]bool)}
	s.latest.Store(math.MinInt64 / 2)
	return s
}

// connected looks at a server when a connection to it is made, before anything
// else is sent on it.
func (s *servers) connected(ctx context.Context, cn *redis.Conn) error {
	text, err := cn.Info(ctx).Result()
	if err != nil {
		return fmt.Errorf("info: %w", err)
	}
	info := parseInfo(text)
	if info["redis_mode"] == "sentinel" {
		return nil
	}
	uptime, err := strconv.ParseInt(info["uptime_in_seconds"], 10, 64)
	if err != nil {
		return nil //nolint:nilerr // a proxy that hides it: nothing can be concluded
	}
	run := info["run_id"]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known[run] {
		s.known[run] = true
		// Uptime counts whole seconds, rounded down, so this is late rather than early.
		started := s.clock() - time.Duration(uptime)*time.Second
		s.latest.Store(max(s.latest.Load(), int64(started)))
	}
	s.eviction = ""
	if p := info["maxmemory_policy"]; strings.HasPrefix(p, "allkeys-") && info["maxmemory"] != "0" {
		s.eviction = p
	}
	return nil
}

// graceLeft says how long grants must still be kept back.
func (s *servers) graceLeft(grace time.Duration) time.Duration {
	return time.Duration(s.latest.Load()) + grace - s.clock()
}

// seen counts the servers seen so far; a change means a restart, a failover or
// a new master, after which memories must be compared.
func (s *servers) seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known)
}

// evicts names the policy by which the server would throw locks away.
func (s *servers) evicts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eviction
}

func parseInfo(text string) map[string]string {
	m := make(map[string]string)
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok {
			m[k] = strings.TrimSpace(v)
		}
	}
	return m
}
