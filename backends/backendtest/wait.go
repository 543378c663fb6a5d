package backendtest

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Eventually waits until f has no error, for as long as a busy machine may need.
func Eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	Within(t, patience, what, f)
}

// Within is Eventually with a patience of its own.
func Within(t testing.TB, patience time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		began := time.Now()
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			if t.Failed() { // it may be for that
				t.FailNow()
			}
			// No machine is so busy, so an error in it is no excuse.
			t.Fatalf("waited %s in vain until %s: %s", patience, what, err.Error())
		}
		// What looks for long takes the processors from what it waits for.
		time.Sleep(max(pause, min(4*time.Since(began), 250*time.Millisecond)))
	}
}

// Beat sends one heartbeat, for its outcome alone.
func Beat(ctx context.Context, l lock.Lease) error {
	_, err := l.Heartbeat(ctx)
	return err
}
