package stores

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// withRueidislock is rueidislock, the fastest library that was found: all callers share
// one connection, and what they send at the same time goes out in one write. It is set
// for one server (a majority of one key) and told that it need not hear of its own keys.
func (s *redisStore) withRueidislock() measure.Subject {
	return measure.Subject{Name: Rueidislock, Open: func(_ context.Context, callers int) ([]measure.Pair, func() error, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{s.client.Options().Addr}, SelectDB: s.client.Options().DB},
			KeyValidity:  redisExpiry, KeyMajority: 1, NoLoopTracking: true,
		})
		if err != nil {
			return nil, nil, fmt.Errorf("open rueidislock: %w", err)
		}
		pairs := make([]measure.Pair, callers)
		for i := range pairs {
			name := "bench:" + strconv.Itoa(i)
			pairs[i] = func(ctx context.Context) error {
				_, release, err := locker.TryWithContext(ctx, name)
				if err != nil {
					return fmt.Errorf("lock: %w", err)
				}
				release() // waits for the answer
				return nil
			}
		}
		return pairs, func() error { locker.Close(); return nil }, nil
	}}
}
