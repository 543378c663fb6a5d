package postgres

import (
	"context"
	"testing"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// BenchmarkTrip measures one statement in a trip, on each road.
func BenchmarkTrip(b *testing.B) {
	for _, kind := range []*testengine.Kind{testengine.Postgres, testengine.PostgresBouncer} {
		b.Run(kind.String(), func(b *testing.B) {
			p := openPool(b, dialect(b, testengine.Shared(b, kind).URL()), sqllock.PoolOptions{Size: 1})
			do(b, p, statement("CREATE TABLE IF NOT EXISTS public.bench (n BIGINT PRIMARY KEY, v BIGINT)"),
				statement("INSERT INTO public.bench VALUES (1, 1) ON CONFLICT DO NOTHING"))
			update := statement("UPDATE public.bench SET v=v+? WHERE n=?", int64(1), int64(1))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Do(context.Background(), "bench", update); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
