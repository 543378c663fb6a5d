package stores

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// CPU implements measure.Store.
func (s *mysqlStore) CPU(context.Context) (float64, error) {
	if s.pid == 0 {
		return 0, nil
	}
	d, err := proc.CPU(s.pid)
	return float64(d) / float64(time.Microsecond), err
}

// Memory implements measure.Store: the pages of tables and indexes in memory.
func (s *mysqlStore) Memory(ctx context.Context) (float64, error) {
	return s.status(ctx, "Innodb_buffer_pool_bytes_data")
}

// Count implements measure.Store. The server counts statements, of which a
// request may have many, and not requests.
func (s *mysqlStore) Count(ctx context.Context) (measure.Count, error) {
	n, err := s.status(ctx, "Questions")
	return measure.Count{Steps: n - s.asked}, err
}

// status reads one of the server's numbers.
func (s *mysqlStore) status(ctx context.Context, name string) (float64, error) {
	s.asked++ // and the answer contains this one
	var n float64
	if err := s.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(new(string), &n); err != nil {
		return 0, fmt.Errorf("ask the server for %s: %w", name, err)
	}
	return n, nil
}
