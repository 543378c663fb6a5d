package stores

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// CPU implements measure.Store: of the server and the processes of its connections.
func (s *postgresStore) CPU(context.Context) (float64, error) {
	if s.pid == 0 {
		return 0, nil
	}
	d, err := proc.FamilyCPU(s.pid)
	return float64(d) / float64(time.Microsecond), err
}

// Memory implements measure.Store.
func (s *postgresStore) Memory(ctx context.Context) (n float64, err error) {
	if err := s.conn.QueryRow(ctx, "SELECT pg_database_size(current_database())::float8").Scan(&n); err != nil {
		return 0, fmt.Errorf("ask the server for its size: %w", err)
	}
	return n, nil
}

// Count implements measure.Store. The server counts transactions, and up to a second
// late.
func (s *postgresStore) Count(ctx context.Context) (measure.Count, error) {
	var n float64
	err := s.conn.QueryRow(ctx, "SELECT sum(xact_commit+xact_rollback)::float8 FROM pg_stat_database").Scan(&n)
	if err != nil {
		return measure.Count{}, fmt.Errorf("ask the server for its count: %w", err)
	}
	return measure.Count{Steps: n}, nil
}

// Notify implements measure.Store.
func (s *postgresStore) Notify(ctx context.Context, d time.Duration) (n measure.Notices, err error) {
	listener, err := s.connect(ctx)
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, listener.Close(context.WithoutCancel(ctx))) }()
	if _, err := listener.Exec(ctx, "LISTEN bench_notice"); err != nil {
		return n, fmt.Errorf("listen: %w", err)
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		var at time.Time
		told := make(chan error, 1)
		go func() {
			_, err := listener.WaitForNotification(ctx)
			at = time.Now()
			told <- err
		}()
		before := time.Now()
		_, err := s.conn.Exec(ctx, "NOTIFY bench_notice")
		answered := time.Now()
		if err := errors.Join(err, <-told); err != nil {
			return n, fmt.Errorf("notify: %w", err)
		}
		n.Delivered = append(n.Delivered, at.Sub(before))
		n.Answered = append(n.Answered, answered.Sub(before))
	}
	return n, nil
}
