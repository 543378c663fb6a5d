package shards

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// A record lives at the shard of its name.

// ReadRecord implements lock.Records, as the next three do.
func (b *Backend) ReadRecord(ctx context.Context, r lock.Resource) (lock.Record, error) {
	s := b.of(r)
	rec, err := s.records.ReadRecord(ctx, r)
	return rec, s.explain(err)
}

// WriteRecord implements lock.Records.
func (b *Backend) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	s := b.of(r)
	return s.explain(s.records.WriteRecord(ctx, r, after, next, keep))
}

// DeleteRecord implements lock.Records.
func (b *Backend) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	s := b.of(r)
	return s.explain(s.records.DeleteRecord(ctx, r, after))
}

// ListRecords implements lock.Records. Shards that do not answer are missing: the error is
// a *lock.PartialError.
func (b *Backend) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	if p.Limit < 1 || p.Limit > lock.MaxPage {
		p.Limit = lock.MaxPage
	}
	return merge(ctx, b, p, func(n lock.NamedRecord) lock.Resource { return n.Resource },
		func(ctx context.Context, s *shard, p lock.Page) ([]lock.NamedRecord, error) {
			return s.records.ListRecords(ctx, prefix, p)
		})
}

// RecordGuard implements lock.RecordGuarder; nil where the shard is no SQL database.
func (b *Backend) RecordGuard(r lock.Resource, after string, next lock.Record, keep time.Duration) *lock.Guard {
	g, ok := b.of(r).records.(lock.RecordGuarder)
	if !ok {
		return nil
	}
	return g.RecordGuard(r, after, next, keep)
}
