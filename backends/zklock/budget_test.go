package zklock

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// pathsOf are the bytes of paths of each session with nodes, as the server sees them:
// so large is the transaction in which the session ends.
func pathsOf(t testing.TB, addr string) map[string]int {
	all := make(map[string]int)
	session := ""
	_, dump, _ := strings.Cut(say(t, addr, "dump"), "Sessions with Ephemerals")
	for line := range strings.Lines(dump) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "0x"):
			session = line
		case strings.HasPrefix(line, "/"):
			all[session] += len(line) + 4
		}
	}
	return all
}

// TestNoSessionEndsInALargeTransaction: whatever a lease holds, no session of it has
// more paths than it may, nor keeps a session that it has no use for.
func TestNoSessionEndsInALargeTransaction(t *testing.T) {
	again(t, testNoSessionEndsInALargeTransaction)
}

func testNoSessionEndsInALargeTransaction(t testing.TB) {
	server := testengine.New(t, testengine.ZooKeeper)
	for _, layout := range []string{"locksidecar", "curator"} {
		b := openAt(t, server.URL()+"/"+strings.Repeat("chroot", 5)+"?timeout=10s&layout="+layout)
		l := newLease(t, b, 20*time.Second)
		stop := beating(t, l, 2*time.Second)
		var mu sync.Mutex
		var grants []lock.Grant
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				for j := range 20 {
					name := fmt.Sprintf("%s/%02d/%02d", strings.Repeat("x", 500), i, j)
					g, err := l.Acquire(t.Context(), request(lock.Resource(name), lock.Exclusive))
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					mu.Lock()
					grants = append(grants, g)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		goOn(t)
		sum := 0
		for s, n := range pathsOf(t, hosts(server.URL())[0]) {
			if sum += n; n > zksession.MaxPaths {
				t.Errorf("%s: the end of session %s is a transaction with %d bytes of paths, want at most %d", layout, s, n, zksession.MaxPaths)
			}
		}
		if sum < 2*zksession.MaxPaths {
			t.Fatalf("%s: the server has only %d bytes of paths", layout, sum)
		}
		for some := range slices.Chunk(grants, 20) {
			all.Go(func() {
				for _, g := range some {
					if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
		stop()
		eventually(t, "one session is left", func() error {
			if err := beat(t.Context(), l); err != nil {
				return err
			}
			if n := strings.Count(say(t, hosts(server.URL())[0], "cons"), "sid=0x"); n > 1 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}
