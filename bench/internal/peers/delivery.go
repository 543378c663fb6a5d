package peers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed handover.lua
	handoverSource string
	handoverScript = redis.NewScript(handoverSource)
)

const (
	deliveryKey     = "bench:delivery"
	deliveryChannel = "bench:delivery"
)

var errWrongMessage = errors.New("another message came than was sent")

// Delivery measures for a while, one after the other, the least that a lock's
// hand-over in Redis needs: a script that deletes and publishes. delivered is
// from just before the EVALSHA until a subscriber on another connection has the
// message, answered until the EVALSHA has returned.
func Delivery(ctx context.Context, c *redis.Client, d time.Duration) (delivered, answered []time.Duration, err error) {
	ps := c.Subscribe(ctx, deliveryChannel)
	if _, err := ps.Receive(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("subscribe: %w", err), ps.Close())
	}
	arrivals := make(chan arrival)
	go receive(ctx, ps, arrivals)
	defer func() {
		err = errors.Join(err, ps.Close())
		for range arrivals { // until the receiver has seen that it is closed
		}
	}()
	keys := []string{deliveryKey}
	for n, end := 0, time.Now().Add(d); time.Now().Before(end); n++ {
		token := strconv.Itoa(n)
		if err := c.Set(ctx, deliveryKey, token, expiry).Err(); err != nil {
			return nil, nil, fmt.Errorf("take the lock: %w", err)
		}
		before := time.Now()
		err := run(ctx, c, handoverScript, keys, token, deliveryChannel)
		after := time.Now()
		if err != nil {
			return nil, nil, fmt.Errorf("hand over: %w", err)
		}
		a := <-arrivals
		if a.err != nil {
			return nil, nil, fmt.Errorf("receive: %w", a.err)
		}
		if a.token != token {
			return nil, nil, errWrongMessage
		}
		delivered = append(delivered, a.at.Sub(before))
		answered = append(answered, after.Sub(before))
	}
	return delivered, answered, nil
}

// arrival is one message, or the end of them.
type arrival struct {
	token string
	at    time.Time
	err   error
}

func receive(ctx context.Context, ps *redis.PubSub, to chan<- arrival) {
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
