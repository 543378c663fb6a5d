package redislock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// sender makes trips to the server, and waits for replicas where it must.
type sender struct {
	client   redis.UniversalClient
	replicas int           // that must have what was written
	patience time.Duration // for how long the server waits for them
}

// Process sends one command.
func (s *sender) Process(ctx context.Context, cmd redis.Cmder) error {
	if s.replicas == 0 {
		return s.client.Process(ctx, cmd)
	}
	s.trip(ctx, []redis.Cmder{cmd})
	return cmd.Err()
}

// trip sends commands together. Each has its own answer or error after it. WAIT
// counts what the connection has seen, so also what another one wrote before.
func (s *sender) trip(ctx context.Context, cmds []redis.Cmder) {
	if len(cmds) == 1 && s.replicas == 0 {
		_ = s.client.Process(ctx, cmds[0]) // the command has its error
		return
	}
	pipe := s.client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // only queues it
	}
	var copies *redis.Cmd
	if s.replicas > 0 {
		copies = pipe.Do(ctx, "wait", s.replicas, s.patience.Milliseconds())
	}
	_, _ = pipe.Exec(ctx)
	if copies == nil {
		return
	}
	n, _ := copies.Int()
	for _, cmd := range cmds {
		if c, ok := cmd.(*command); ok {
			c.copies = n
		}
	}
}
