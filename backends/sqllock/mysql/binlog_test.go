package mysql

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// BenchmarkBinlog measures what a pair writes into the binary log of MariaDB: of locks
// that nobody else wants, and of one lock that eight callers of two sidecars want all the
// time; with the log of grants, and without.
func BenchmarkBinlog(bench *testing.B) {
	for _, keep := range []string{"24h", "0s"} {
		for _, hot := range []bool{false, true} {
			bench.Run(fmt.Sprintf("log-keep=%s/hot=%t", keep, hot), func(bench *testing.B) {
				url := with(testengine.New(bench, testengine.MariaDBPair).URL(), "log-keep="+keep)
				b, one := sidecar(bench, url, 10*time.Minute)
				_, other := sidecar(bench, url, 10*time.Minute)
				written := func() int64 {
					time.Sleep(2 * time.Second) // the log of grants comes later
					return number(bench, b, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='BINLOG_BYTES_WRITTEN'")
				}
				const callers, pairs = 8, 250
				var bytes, all int64
				for bench.Loop() {
					before := written()
					var working sync.WaitGroup
					for i := range callers {
						working.Go(func() {
							l, r := one, lock.Resource("hot")
							if i%2 > 0 {
								l = other
							}
							if !hot {
								r = lock.Resource(fmt.Sprintf("own/%d", i))
							}
							for range pairs {
								q := exclusive(r)
								if _, err := l.Acquire(context.Background(), q); err != nil {
									bench.Error(err)
									return
								}
								if err := l.Release(context.Background(), r, q.ID); err != nil {
									bench.Error(err)
									return
								}
							}
						})
					}
					working.Wait()
					bytes, all = bytes+written()-before, all+callers*pairs
				}
				bench.ReportMetric(float64(bytes)/float64(all), "bytes/pair")
			})
		}
	}
}
