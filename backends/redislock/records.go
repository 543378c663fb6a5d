package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// forgetEvery is how often a sidecar's heartbeats forget the names of records that are over.
const forgetEvery = 20 * time.Second

var _ lock.Records = (*Backend)(nil)

// recordName is how the name of a record stands in the lists of its bucket: as in a lease's
// "mine" set, see member.
func recordName(r lock.Resource) string { return member(r, "") }

// recordKeys gives KEYS of record.lua.
func (b *Backend) recordKeys(r lock.Resource) []string {
	k := &b.keys.buckets[b.keys.bucketOf(r)]
	return []string{k.record + string(r), k.records, k.recordEnds}
}

// ReadRecord implements lock.Records.
func (b *Backend) ReadRecord(ctx context.Context, r lock.Resource) (lock.Record, error) {
	reply := b.run(ctx, b.client, scriptReadRecord, b.recordKeys(r)[:1])
	if reply.err != nil {
		return lock.Record{}, unavailable("read record", reply.err)
	}
	return parseRecordText(reply.val)
}

// parseRecordText reads the answer of record_read.lua.
func parseRecordText(val any) (lock.Record, error) {
	if val == nil {
		return lock.Record{}, nil
	}
	fields, _ := val.([]any)
	parts := strings.SplitN(word(fields, 1), " ", 3)
	now, err := strconv.ParseInt(word(fields, 0), 10, 64)
	if err != nil || len(parts) != 3 {
		return lock.Record{}, fmt.Errorf("read record: Redis answered %v: %w", val, lock.ErrUnavailable)
	}
	since, _ := strconv.ParseInt(parts[1], 10, 64)
	return lock.Record{
		Version: parts[0], Value: []byte(parts[2]),
		Age: max(0, time.Duration(now-since)*time.Microsecond),
	}, nil
}

// WriteRecord implements lock.Records.
func (b *Backend) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	if err := next.Check(keep); err != nil {
		return err
	}
	return b.changeRecord(ctx, "write record", r, scriptWriteRecord,
		recordName(r), after, next.Version, next.Value, keep.Milliseconds())
}

// DeleteRecord implements lock.Records.
func (b *Backend) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	return b.changeRecord(ctx, "delete record", r, scriptDeleteRecord, recordName(r), after)
}

// changeRecord runs a script that changes a record if its version is right.
func (b *Backend) changeRecord(ctx context.Context, what string, r lock.Resource, s *script, args ...any) error {
	if err := b.check(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	reply := b.run(ctx, &b.sender, s, b.recordKeys(r), args...)
	switch {
	case reply.err != nil:
		return unavailable(what, reply.err)
	case reply.val == int64(0):
		return fmt.Errorf("%s of %q: %w", what, string(r), lock.ErrRecordChanged)
	case reply.copies < b.cfg.replicas:
		return fmt.Errorf("%s: %d replicas have it, %d must: %w", what, reply.copies, b.cfg.replicas, lock.ErrUnavailable)
	}
	return nil
}

// ListRecords implements lock.Records: names first, from the lists of all buckets, then
// the records of a page.
func (b *Backend) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	limit := p.Most()
	var out []lock.NamedRecord
	for after := p.After; ; {
		span := nameRange(prefix, after)
		lists := make([]*nameList, len(b.keys.buckets))
		for i := range lists {
			lists[i] = &nameList{key: b.keys.buckets[i].records, next: span.Min}
		}
		names, err := b.firstNames(ctx, lists, span, limit)
		if err != nil {
			return nil, err
		}
		calls := make([]call, len(names))
		for i, r := range names {
			calls[i] = call{keys: b.recordKeys(r)[:1]}
		}
		if err := b.runAll(ctx, scriptReadRecord, calls); err != nil {
			return nil, unavailable("list records", err)
		}
		for i, r := range names {
			rec, err := parseRecordText(calls[i].val)
			switch {
			case err != nil:
				return nil, err
			case rec.Version == "": // it is over, and its name is still there
				continue
			}
			if out = append(out, lock.NamedRecord{Resource: r, Record: rec}); len(out) == limit {
				return out, nil
			}
		}
		if len(names) < limit {
			return out, nil
		}
		after = names[len(names)-1]
	}
}
