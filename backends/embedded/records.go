package embedded

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxRecords is how many records a Store keeps: they are in memory.
const maxRecords = 100_000

// forgetStep is how many records that are over are forgotten before others are let in.
const forgetStep = 100

// record is a lock.Record that is kept until its end.
type record struct {
	lock.Record
	name  lock.Resource
	index int // in Store.recorded
	since time.Duration
	end   ending
}

func (r *record) called() lock.Resource { return r.name }

var _ lock.Records = (*Store)(nil)

// record gives the record of a name, or nil. What is over may not be forgotten yet.
func (s *Store) record(name lock.Resource, now time.Duration) *record {
	if r := s.records[name]; r != nil && now < r.end.at {
		return r
	}
	return nil
}

// told is a copy for a caller; r may be nil.
func (r *record) told(now time.Duration) lock.Record {
	if r == nil {
		return lock.Record{}
	}
	return lock.Record{Version: r.Version, Value: bytes.Clone(r.Value), Age: now - r.since}
}

// ReadRecord implements lock.Records.
func (s *Store) ReadRecord(_ context.Context, name lock.Resource) (lock.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return lock.Record{}, err
	}
	return s.record(name, now).told(now), nil
}

// WriteRecord implements lock.Records.
func (s *Store) WriteRecord(_ context.Context, name lock.Resource, after string, next lock.Record, keep time.Duration) error {
	if err := next.Check(keep); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return err
	}
	s.forget(now)
	r, version := s.record(name, now), ""
	if r != nil {
		version = r.Version
	}
	switch r = s.records[name]; {
	case version == next.Version:
		return nil
	case version != after:
		return fmt.Errorf("write record of %q: %w", string(name), lock.ErrRecordChanged)
	case r == nil && len(s.records) == maxRecords:
		return &lock.LimitError{Limit: "records in the embedded store", Max: maxRecords}
	case r == nil:
		r = &record{name: name, index: len(s.recorded)}
		r.end.over = func(time.Duration) { s.removeRecord(r) }
		s.records[name] = r
		s.recorded = append(s.recorded, r)
	}
	r.Version, r.Value, r.since = next.Version, bytes.Clone(next.Value), now
	s.recordEnds.set(&r.end, now+keep)
	if len(s.records) == 1 {
		s.ring() // it may be the first thing that ends
	}
	return nil
}

// DeleteRecord implements lock.Records.
func (s *Store) DeleteRecord(_ context.Context, name lock.Resource, after string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return err
	}
	r := s.record(name, now)
	switch {
	case r == nil:
		return nil
	case r.Version != after:
		return fmt.Errorf("delete record of %q: %w", string(name), lock.ErrRecordChanged)
	}
	s.recordEnds.cancel(&r.end)
	s.removeRecord(r)
	return nil
}

// removeRecord forgets a record that ends no more.
func (s *Store) removeRecord(r *record) {
	delete(s.records, r.name)
	last := len(s.recorded) - 1
	moved := s.recorded[last]
	s.recorded[r.index], moved.index = moved, r.index
	s.recorded[last] = nil
	s.recorded = s.recorded[:last]
}

// forget forgets some records that are over.
func (s *Store) forget(now time.Duration) {
	for range forgetStep {
		if !s.recordEnds.pop(now) {
			return
		}
	}
	s.ring()
}

// ListRecords implements lock.Records.
func (s *Store) ListRecords(_ context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	limit := p.Most()
	names, err := names(s, &s.recorded, prefix, p.After)
	if err != nil {
		return nil, err
	}
	var list []lock.NamedRecord
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if len(list) == limit {
			break
		}
		if r := s.record(name, now); r != nil { // else it is gone since
			list = append(list, lock.NamedRecord{Resource: name, Record: r.told(now)})
		}
	}
	return list, nil
}
