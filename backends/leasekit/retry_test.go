package leasekit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The pauses grow up to maxRetry, and begin again after a try that worked.
func TestRetryPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRetry(100 * time.Millisecond)
		for range 2 {
			for most := 100 * time.Millisecond; most < 16*maxRetry; most *= 2 {
				start := time.Now()
				if !r.Wait(t.Context()) {
					t.Fatal("ctx has ended")
				}
				longest := min(most, maxRetry)
				if d := time.Since(start); d < longest/2 || d > longest {
					t.Errorf("a pause of %s, want %s to %s", d, longest/2, longest)
				}
			}
			r.Worked()
		}
	})
}

// An answer ends the pause that it finds. One that came before the try failed does not.
func TestRetryAfterAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRetry(time.Second)
		r.Answered()
		start := time.Now()
		r.Wait(t.Context())
		if time.Since(start) < time.Second/2 {
			t.Error("an answer from before the try has ended the pause")
		}
		start = time.Now()
		time.AfterFunc(time.Millisecond, r.Answered)
		r.Wait(t.Context())
		if d := time.Since(start); d != time.Millisecond {
			t.Errorf("the pause ended after %s, want 1ms, with the answer", d)
		}
	})
}

func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		start := time.Now()
		if NewRetry(time.Second).Wait(ctx) || time.Since(start) != time.Millisecond {
			t.Error("Wait has not ended with ctx")
		}
	})
}
