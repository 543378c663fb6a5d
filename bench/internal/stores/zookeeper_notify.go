package stores

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/go-zookeeper/zk"
)

const zooKeeperNotice = zooKeeperRoot + "/notice"

var errWrongNotice = errors.New("the watch tells of something else than the delete")

// Notify implements measure.Store: one client deletes a node, which the other
// watches.
func (s *zooKeeperStore) Notify(ctx context.Context, d time.Duration) (n measure.Notices, err error) {
	holder, err := s.connect(ctx)
	if err != nil {
		return n, err
	}
	defer holder.Close()
	waiter, err := s.connect(ctx)
	if err != nil {
		return n, err
	}
	defer waiter.Close()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := holder.Create(zooKeeperNotice, nil, zk.FlagEphemeral, everybody); err != nil {
			return n, fmt.Errorf("create: %w", err)
		}
		exists, _, watch, err := waiter.ExistsW(zooKeeperNotice)
		if err != nil || !exists {
			return n, fmt.Errorf("watch a node (there: %v): %w", exists, err)
		}
		told := make(chan time.Time, 1)
		var event zk.Event
		go func() {
			event = <-watch // comes at the latest when the connection is closed
			told <- time.Now()
		}()
		before := time.Now()
		err = holder.Delete(zooKeeperNotice, -1)
		answered := time.Now()
		if err != nil {
			return n, fmt.Errorf("delete: %w", err)
		}
		at := <-told
		if event.Type != zk.EventNodeDeleted {
			return n, errWrongNotice
		}
		n.Delivered = append(n.Delivered, at.Sub(before))
		n.Answered = append(n.Answered, answered.Sub(before))
	}
	return n, nil
}
