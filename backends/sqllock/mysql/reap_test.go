package mysql

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Thousands of names that were taken once go in a short time.
func TestReapManyIdle(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.MariaDB)
	var ahead atomic.Int64
	clock := func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) }
	b := openClock(t, own(t, s, "many_"), clock)
	l := leaseOf(t, b)
	keepAlive(t, t.Context(), l)
	execute(t, b, "INSERT INTO {lock} (name, fence) SELECT CONCAT('idle', seq), (UNIX_TIMESTAMP()-3600)*1000000 FROM seq_1_to_3000")
	eventually(t, "the floor is raised", func() error {
		if number(t, b, "SELECT value FROM {meta} WHERE name='floor'") == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	ahead.Add(int64(2 * time.Minute))
	eventually(t, "all idle rows are deleted", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {lock}"); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
}
