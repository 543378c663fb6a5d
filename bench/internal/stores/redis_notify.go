package stores

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed redis_handover.lua
	handoverSource string
	handoverScript = redis.NewScript(handoverSource)
)

const (
	deliveryKey     = "bench:delivery"
	deliveryChannel = "bench:delivery"
)

var errWrongMessage = errors.New("another message came than was sent")

// Notify implements measure.Store with a script that deletes and publishes: the
// other client subscribes to the channel.
func (s *redisStore) Notify(ctx context.Context, d time.Duration) (n measure.Notices, err error) {
	c := s.client
	ps := c.Subscribe(ctx, deliveryChannel)
	if _, err := ps.Receive(ctx); err != nil {
		return n, errors.Join(fmt.Errorf("subscribe: %w", err), ps.Close())
	}
	arrivals := make(chan arrival)
	go receiveMessages(ctx, ps, arrivals)
	defer func() {
		err = errors.Join(err, ps.Close())
		for range arrivals { // until the receiver has seen that it is closed
		}
	}()
	keys := []string{deliveryKey}
	for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
		token := strconv.Itoa(i)
		if err := c.Set(ctx, deliveryKey, token, redisExpiry).Err(); err != nil {
			return n, fmt.Errorf("take the lock: %w", err)
		}
		before := time.Now()
		err := runScript(ctx, c, handoverScript, keys, token, deliveryChannel)
		after := time.Now()
		if err != nil {
			return n, fmt.Errorf("hand over: %w", err)
		}
		a := <-arrivals
		if a.err != nil {
			return n, fmt.Errorf("receive: %w", a.err)
		}
		if a.token != token {
			return n, errWrongMessage
		}
		n.Delivered = append(n.Delivered, a.at.Sub(before))
		n.Answered = append(n.Answered, after.Sub(before))
	}
	return n, nil
}

// arrival is one message, or the end of them.
type arrival struct {
	token string
	at    time.Time
	err   error
}

func receiveMessages(ctx context.Context, ps *redis.PubSub, to chan<- arrival) {
	defer close(to)
	for {
		m, err := ps.ReceiveMessage(ctx)
		at := time.Now()
		if err != nil {
			to <- arrival{err: err}
			return
		}
		to <- arrival{token: m.Payload, at: at}
	}
}
