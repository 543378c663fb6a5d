package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

const mysqlNotice = "bench/notice"

// Notify implements measure.Store: one client releases a named lock, for which
// the other waits. MySQL tells nothing else by itself.
func (s *mysqlStore) Notify(ctx context.Context, d time.Duration) (n measure.Notices, err error) {
	holder, err := s.db.Conn(ctx)
	if err != nil {
		return n, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, holder.Close()) }()
	waiter, err := s.db.Conn(ctx)
	if err != nil {
		return n, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, waiter.Close()) }()
	var id int64
	if err := waiter.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		return n, fmt.Errorf("ask for the number of a connection: %w", err)
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := mysqlSaysOne(ctx, holder, "SELECT GET_LOCK(?, 0)", mysqlNotice); err != nil {
			return n, fmt.Errorf("lock: %w", err)
		}
		var at time.Time
		told := make(chan error, 1)
		go func() {
			err := mysqlSaysOne(ctx, waiter, "SELECT GET_LOCK(?, 10)", mysqlNotice)
			at = time.Now()
			told <- err
		}()
		waitErr := s.untilWaiting(ctx, id)
		before := time.Now()
		err := errors.Join(waitErr, mysqlSaysOne(ctx, holder, "SELECT RELEASE_LOCK(?)", mysqlNotice))
		answered := time.Now()
		if err := errors.Join(err, <-told); err != nil {
			return n, fmt.Errorf("hand over: %w", err)
		}
		if err := mysqlSaysOne(ctx, waiter, "SELECT RELEASE_LOCK(?)", mysqlNotice); err != nil {
			return n, fmt.Errorf("unlock: %w", err)
		}
		n.Delivered = append(n.Delivered, at.Sub(before))
		n.Answered = append(n.Answered, answered.Sub(before))
	}
	return n, nil
}

// untilWaiting returns when a connection waits for a named lock.
func (s *mysqlStore) untilWaiting(ctx context.Context, id int64) error {
	for {
		var state sql.NullString
		err := s.db.QueryRowContext(ctx, "SELECT state FROM information_schema.processlist WHERE id = ?", id).Scan(&state)
		if err != nil {
			return fmt.Errorf("look for a waiter: %w", err)
		}
		if state.String == "User lock" {
			return nil
		}
	}
}
