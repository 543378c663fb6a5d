package zklock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestPermitsWithMuchToSay: so many permits are free at once, whose apps say so much about themselves, that no server would take all
// their slots in one packet. They take them in several.
func TestPermitsWithMuchToSay(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	const escaped = "<" // takes six bytes in JSON
	owner := lock.Owner{
		Session: strings.Repeat(escaped, 128), Label: strings.Repeat(escaped, 128),
		Metadata: map[string]string{"k": strings.Repeat(escaped, 1023)},
		Nested:   &lock.Nested{Held: slices.Repeat([]string{strings.Repeat(escaped, lock.MaxResourceBytes)}, lock.MaxNestedBytes/lock.MaxResourceBytes)},
	}.Encode()
	for _, least := range []time.Duration{0, time.Second} {
		subtest(t, fmt.Sprint("min_hold ", least), func(t testing.TB) {
			b, l := sidecar(t, s.URL()+"?timeout=10s", 40*time.Second)
			live(t, l)
			_, o := sidecar(t, s.URL()+"?timeout=10s", 40*time.Second)
			live(t, o)
			r := unique()
			x := hold(t, o, r, lock.Exclusive)
			const permits = 100
			granted := make(chan lock.Grant, permits)
			for range permits {
				q := request(r, lock.Permits(permits))
				q.Owner, q.MinHold = owner, least
				go func() {
					g, err := l.Acquire(t.Context(), q)
					if err != nil && t.Context().Err() == nil {
						t.Errorf("Acquire: %v", err)
					}
					granted <- g
				}()
			}
			eventually(t, "all are in the queue", func() error {
				if n := len(nodes(t, b, s.URL(), r)); n != permits+1 {
					return fmt.Errorf("there are %d nodes", n)
				}
				return nil
			})
			release(t, o, x)
			late := time.After(patience)
			for i := range permits {
				select {
				case g := <-granted:
					release(t, l, g)
				case <-late:
					goOn(t)
					t.Fatalf("%d of %d permits were granted within %s", i, permits, patience)
				}
			}
			empty(t, b, s.URL(), r)
		})
	}
}
