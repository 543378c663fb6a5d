package backendtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestAgain: what a busy machine may cause fails a test only where it is so each time, and
// all else at once.
func TestAgain(t *testing.T) {
	unanswered := fmt.Errorf("acquire: %w", lock.ErrUnavailable)
	for what, test := range map[string]struct {
		fail     func(*env)
		attempts int // after which it is over, where only the first fails
	}{
		"no answer":                 {func(e *env) { e.Fatalf("Acquire: %v", unanswered) }, 2},
		"no answer of many":         {func(e *env) { e.several(100, func(int) error { return unanswered }) }, 2},
		"no answer under load":      {func(e *env) { e.load(loadTime, []*sidecar{nil}, 3, func(*sidecar, int) error { return unanswered }) }, 2},
		"no answer, and it goes on": {func(e *env) { e.Errorf("Acquire: %v", unanswered) }, 2},
		"too late":                  {func(e *env) { e.slow("it took long") }, 2},
		"no heartbeat": {func(e *env) {
			s := e.mortal()
			s.beating <- struct{}{} // the machine runs others
			time.Sleep(2 * s.ttl)
			<-s.beating
			e.acquire(s, e.name("r"), lock.Exclusive)
		}, 2},
		"a lease is lost":          {func(e *env) { e.Fatalf("Acquire: %v", e.mortal().blame(lock.ErrLeaseLost)) }, 1},
		"two holders":              {func(e *env) { e.Errorf("two holders") }, 1},
		"two holders beside":       {func(e *env) { e.Errorf("Acquire: %v", unanswered); e.Error("two holders") }, 1},
		"another error":            {func(e *env) { e.Fatalf("Acquire: %v", lock.ErrNotHolder) }, 1},
		"something is left behind": {func(e *env) { e.acquire(e.sidecar(), e.name("r"), lock.Exclusive) }, 1},
	} {
		t.Run(what, func(t *testing.T) {
			for _, always := range []bool{false, true} {
				attempts, ended := 0, 0
				failures := judgeThat(t, faults{}, conformance{name: "Again", run: func(e *env) {
					attempts++
					e.Cleanup(func() { ended++ })
					if attempts == 1 || always {
						test.fail(e)
					}
				}})
				want := test.attempts
				if always && want > 1 {
					want = maxAttempts
				}
				if fails := always || want == 1; attempts != want || ended != attempts || fails != (len(failures) > 0) {
					t.Errorf("each time: %t; %d attempts, %d ended, with the failures %q; want %d", always, attempts, ended, slices.Compact(failures), want)
				}
			}
		})
	}
}
