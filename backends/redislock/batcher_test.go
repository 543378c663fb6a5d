package redislock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestEachCallerHasItsOwnAnswer, also where others leave before theirs has come.
func TestEachCallerHasItsOwnAnswer(t *testing.T) {
	b, _ := sidecar(t, testengine.New(t, testengine.Redis).URL()+noGrace, time.Minute)
	many(t, 32, func(i int) error {
		for n := range 60 {
			ctx, cancel := context.WithCancel(t.Context())
			if n%2 == 1 {
				leave := time.AfterFunc(time.Duration(n)*10*time.Microsecond, cancel)
				defer leave.Stop()
			}
			want := fmt.Sprintf("%d of %d", n, i)
			cmd := redis.NewCmd(ctx, "echo", want)
			err := b.batchers[0].Process(ctx, cmd)
			cancel()
			switch {
			case errors.Is(err, errNotSent), errors.Is(err, errCut):
			case err != nil:
				return err
			case cmd.Val() != want:
				return fmt.Errorf("asked for %q, got %v", want, cmd.Val())
			}
		}
		return nil
	})
}
