package backendtest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// recordRow is a record of the model.
type recordRow struct {
	lock.Record
	since, ends time.Time
}

var _ lock.Records = (*modelBackend)(nil)

// record is that of a name, if it is not over.
func (s *server) record(r lock.Resource, now time.Time) (rec lock.Record) {
	row, ok := s.records[r]
	if ok && (now.Before(row.ends) || s.bad.keepsForLonger) {
		rec = row.Record
		rec.Age = now.Sub(row.since)
	}
	return rec
}

func (b *modelBackend) ReadRecord(_ context.Context, r lock.Resource) (rec lock.Record, err error) {
	err = b.ask(func(s *server, now time.Time) { rec = s.record(r, now) })
	return rec, err
}

func (b *modelBackend) WriteRecord(_ context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	if err := next.Check(keep); err != nil {
		return err
	}
	if b.m.bad.losesRecords && b.deaf.Load() && after != "" {
		next.Version += "x"
	}
	return b.change(r, after, next.Version, func(s *server, now time.Time) {
		s.records[r] = recordRow{Record: next, since: now, ends: now.Add(keep)}
	})
}

func (b *modelBackend) DeleteRecord(_ context.Context, r lock.Resource, after string) error {
	return b.change(r, after, "", func(s *server, _ time.Time) { delete(s.records, r) })
}

// change does something to a record whose version is after, or is done already.
func (b *modelBackend) change(r lock.Resource, after, done string, do func(s *server, now time.Time)) (answer error) {
	err := b.ask(func(s *server, now time.Time) {
		switch version := s.record(r, now).Version; {
		case version == done && !b.m.bad.writesTwice:
		case version == after || b.m.bad.lastWriteWins:
			do(s, now)
		default:
			answer = lock.ErrRecordChanged
		}
	})
	if err != nil {
		return err
	}
	return answer
}

func (b *modelBackend) ListRecords(_ context.Context, prefix string, p lock.Page) (all []lock.NamedRecord, err error) {
	limit := p.Limit
	if limit == 0 {
		limit = lock.MaxPage
	}
	err = b.ask(func(s *server, now time.Time) {
		for _, r := range slices.Sorted(maps.Keys(s.records)) {
			rec := s.record(r, now)
			if rec.Version != "" && r > p.After && len(all) < limit && strings.HasPrefix(string(r), prefix) {
				all = append(all, lock.NamedRecord{Resource: r, Record: rec})
			}
		}
		if b.m.bad.listsAtRandom {
			slices.Reverse(all)
		}
	})
	return all, err
}
