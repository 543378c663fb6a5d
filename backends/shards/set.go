package shards

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// setName is the name of the record that says to which set a shard belongs. No app can ask for it: a
// resource has no control characters.
const setName lock.Resource = "\x01shards"

const (
	// keepSet is for how long a shard remembers its set when no sidecar opens a lease there.
	keepSet time.Duration = lock.MaxKeep
	// renewSet is how old the record is when who opens a lease writes it again.
	renewSet = 30 * 24 * time.Hour
	// keepProposal is for how long a shard remembers a set that was only proposed: longer than the opening of
	// a lease can take.
	keepProposal = time.Hour
	// surveyTime is how long a sidecar that founds a set waits for shards that do not answer.
	surveyTime = 3 * time.Second
	// lookSet is the time between two looks of a sidecar that has a lease at a shard.
	lookSet = 5 * time.Second
	// settleSet is how long nobody gets a lease at a shard that was told its new set: sidecars of the
	// old one that were not stopped have looked by then.
	settleSet = 3 * lookSet
)

// set is what the record says. The first sidecar proposes its set to all shards, and then has each confirm it.
// So a set that one of them has confirmed was once in the records of all: nobody else has founded another
// one on any of them since, unless that shard has lost its data.
type set struct {
	Shards    []string `json:"shards"`         // names, in byte order; one: the store stands alone, and was a shard before
	Name      string   `json:"name,omitempty"` // which of them this one is
	Confirmed bool     `json:"confirmed,omitempty"`
	Replaced  bool     `json:"replaced,omitempty"` // it was another set before
}

// setRecord is the record of a shard as it was read.
type setRecord struct {
	set
	version string // empty: there is none
	age     time.Duration
}

// MismatchError says that a shard belongs to another set than the sidecar names. It is lock.ErrUnavailable: the
// sidecar asks again, and serves nobody there until then.
type MismatchError struct {
	Shard       string
	Theirs, Own []string
	Known       string // as which of the same set it is known; "": it is another set
}

func (e *MismatchError) Error() string {
	if e.Known != "" {
		return fmt.Sprintf("shard %s is the same store as shard %s, or was when the set was founded. Give all sidecars the same stores under the "+
			"same names, or stop all of them and run 'locksidecar shards --replace' with the new ones", e.Shard, e.Known)
	}
	return fmt.Sprintf("shard %s belongs to another set of shards: %s; this sidecar names %s. Give all sidecars the same shards, "+
		"or stop all of them and run 'locksidecar shards --replace' with the new ones",
		e.Shard, named(e.Theirs), named(e.Own))
}

// Is makes errors.Is(err, lock.ErrUnavailable) true.
func (e *MismatchError) Is(target error) bool { return target == lock.ErrUnavailable }

func named(list []string) string {
	if len(list) == 0 {
		return "no shards"
	}
	return "[" + strings.Join(list, " ") + "]"
}

func (s *shard) readSet(ctx context.Context) (setRecord, error) {
	rec, err := s.records.ReadRecord(ctx, setName)
	if err != nil {
		return setRecord{}, fmt.Errorf("read to which set of shards it belongs: %w", s.explain(err))
	}
	found := setRecord{version: rec.Version, age: rec.Age}
	if rec.Version != "" {
		if err := json.Unmarshal(rec.Value, &found.set); err != nil {
			return setRecord{}, fmt.Errorf("%w: shard %s: the record of its set cannot be read: %w", lock.ErrUnavailable, s.name, err)
		}
	}
	return found, nil
}

// writeSet writes over the record that was read. lock.ErrRecordChanged: somebody else has written
// meanwhile.
func (s *shard) writeSet(ctx context.Context, over setRecord, next set) error {
	value, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode the set of shards: %w", err)
	}
	keep := keepSet
	if !next.Confirmed {
		keep = keepProposal
	}
	if err := s.records.WriteRecord(ctx, setName, over.version, lock.Record{Version: rand.Text(), Value: value}, keep); err != nil {
		return fmt.Errorf("write to which set of shards it belongs: %w", s.explain(err))
	}
	return nil
}

// admit is nil when the shard belongs to this set of shards. It is asked before each lease.
// Errors: *MismatchError, lock.ErrUnavailable.
func (b *Backend) admit(ctx context.Context, s *shard) error {
	found, err := s.readSet(ctx)
	if err != nil {
		return err
	}
	if err := b.compare(s, found); err != nil {
		return err
	}
	switch {
	case !found.Confirmed:
		return b.found(ctx)
	case s.settled(found) != nil:
		return s.settled(found)
	case found.age > renewSet:
		next := found.set
		next.Replaced = false
		_ = s.writeSet(ctx, found, next) // the next one tries again
	}
	return nil
}

// settled is nil when sidecars of an old set have had time to notice that there is a new one.
func (s *shard) settled(found setRecord) error {
	if !found.Replaced || found.age >= settleSet {
		return nil
	}
	return fmt.Errorf("%w: %s belongs to this set since %s ago: sidecars of the old set have %s to notice it",
		lock.ErrUnavailable, s.name, found.age.Round(time.Second), settleSet)
}

// found founds the set, or goes on where another sidecar has begun to. All shards must answer for
// that, but where one has confirmed the set already: then those that answer and have lost it get it again.
func (b *Backend) found(ctx context.Context) error {
	select {
	case b.founder <- struct{}{}: // one at a time
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, context.Cause(ctx))
	}
	defer func() { <-b.founder }()
	known, answered, err := b.survey(ctx)
	switch {
	case err != nil && !known:
		return fmt.Errorf("before the shards are used for the first time, all must answer: %w", err)
	case err == nil && !known:
		if err := join(b.each(func(s *shard) error { return s.idle(ctx) })...); err != nil {
			return err
		}
		if err := join(b.each(func(s *shard) error { return b.claim(ctx, s, false) })...); err != nil {
			return err
		}
	}
	return join(b.each(func(s *shard) error {
		if !answered[s.number] { // it is asked when it is back
			return nil
		}
		return b.claim(ctx, s, true)
	})...)
}

// survey reads to which set the shards belong. known: one of them has confirmed this one. The error is that
// of those that did not answer, but when one belongs to another set it is a *MismatchError, and known is false.
func (b *Backend) survey(ctx context.Context) (known bool, answered []bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	found := make([]setRecord, len(b.shards))
	errs := b.each(func(s *shard) (err error) {
		if found[s.number], err = s.readSet(ctx); err == nil {
			err = b.compare(s, found[s.number])
		}
		return err
	})
	answered = make([]bool, len(b.shards))
	for i, err := range errs {
		var other *MismatchError
		if errors.As(err, &other) {
			return false, nil, other
		}
		answered[i] = err == nil
		known = known || found[i].Confirmed
	}
	return known, answered, join(errs...)
}

// compare is nil where a shard belongs to this set, or to none.
func (b *Backend) compare(s *shard, found setRecord) error {
	own := b.names()
	switch {
	case found.version == "":
	case !slices.Equal(found.Shards, own):
		return &MismatchError{Shard: s.name, Theirs: found.Shards, Own: own}
	case found.Name != s.name:
		return &MismatchError{Shard: s.name, Theirs: found.Shards, Own: own, Known: found.Name}
	}
	return nil
}

// claim has a shard belong to this set, where it belongs to none.
func (b *Backend) claim(ctx context.Context, s *shard, confirm bool) error {
	found, err := s.readSet(ctx)
	if err == nil {
		err = b.compare(s, found)
	}
	if err != nil || found.Confirmed || found.version != "" && !confirm {
		return err
	}
	return changed(s.writeSet(ctx, found, set{Shards: b.names(), Name: s.name, Confirmed: confirm}))
}

// changed makes lock.ErrUnavailable of lock.ErrRecordChanged: another sidecar has written at the same time, and
// whether it is the same is seen the next time.
func changed(err error) error {
	if errors.Is(err, lock.ErrRecordChanged) {
		return fmt.Errorf("%w: another sidecar writes at the same time: %w", lock.ErrUnavailable, err)
	}
	return err
}
