package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func recordOf(version string) lock.Record {
	return lock.Record{Version: version, Value: []byte(version + "\x00\xff'?")}
}

// An app writes a record in its own transaction, at any isolation level: with its data or
// not at all. While that is open, writes of that record wait for no row and take no
// connection, so that all else goes on. What is over is deleted, but not what an app has
// locked.
func TestRecordGuard(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Postgres)
	b, l := sidecar(t, with(s.URL(), "max-connections=2"), 2*time.Minute) // nobody renews it
	write := func(ctx context.Context, name lock.Resource, after, version string) error {
		return b.WriteRecord(ctx, name, after, recordOf(version), time.Hour)
	}
	var tx pgx.Tx
	eventually(t, "an app has locked a record that is soon over", func() error {
		there, err := b.ReadRecord(t.Context(), "brief")
		version := string(lock.NewHoldID())
		if err == nil {
			err = b.WriteRecord(t.Context(), "brief", there.Version, recordOf(version), 2*time.Second)
		}
		if err != nil {
			return err
		}
		tx = beginAt(t, app(t, s), pgx.ReadCommitted)
		if !passes(t, tx, b.RecordGuard("brief", version, recordOf("app"), time.Second)) {
			_ = tx.Rollback(t.Context())
			return errors.New("it was over")
		}
		return nil
	})
	for i := range 210 { // more than two steps; they are over while the rest of the test goes on
		if err := b.WriteRecord(t.Context(), lock.Resource(fmt.Sprint("brief", i)), "", recordOf("v1"), 3*time.Second); err != nil {
			t.Fatal(err)
		}
	}

	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			r := lock.Resource(level)
			if err := write(t.Context(), r, "", "v1"); err != nil {
				t.Fatal(err)
			}
			tx := beginAt(t, app(t, s), level)
			if !passes(t, tx, b.RecordGuard(r, "v1", recordOf("app"), time.Hour)) {
				t.Fatal("the guard does not pass")
			}
			blocked := make(chan error, 40)
			long, cancel := context.WithCancel(t.Context())
			defer cancel()
			for i := range cap(blocked) {
				go func() { blocked <- write(long, r, "v1", fmt.Sprint("late", i)) }()
			}
			for i := range 5 {
				g := hold(t, l, fmt.Sprint("lock", i), lock.Exclusive)
				if err := errors.Join(l.Release(t.Context(), g.Resource, g.ID), write(t.Context(), r+lock.Resource(fmt.Sprint(i)), "", "v1")); err != nil {
					t.Errorf("beside a row that an app has locked: %v", err)
				}
			}
			cancel()
			for range cap(blocked) {
				if err := <-blocked; !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("WriteRecord while an app writes: %v", err)
				}
			}
			if rec, err := b.ReadRecord(t.Context(), r); err != nil || rec.Version != "v1" {
				t.Errorf("before the commit the record is %q, %v", rec.Version, err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rec, err := b.ReadRecord(t.Context(), r); err != nil || rec.Version != "app" || string(rec.Value) != string(recordOf("app").Value) {
				t.Errorf("after the commit the record is %q with %q, %v", rec.Version, rec.Value, err)
			}
			if err := write(t.Context(), r, "v1", "v2"); !errors.Is(err, lock.ErrRecordChanged) {
				t.Errorf("WriteRecord after the commit: %v", err)
			}
			tx = beginAt(t, app(t, s), level)
			if err := write(t.Context(), r, "app", "v2"); err != nil {
				t.Fatal(err)
			}
			if passes(t, tx, b.RecordGuard(r, "app", recordOf("late"), time.Hour)) {
				t.Error("the guard of another version passes")
			}
			_ = tx.Rollback(t.Context())
		})
	}

	h := &harness{&served.Store{Server: s}}
	left := func(want int) {
		t.Helper()
		eventually(t, "records that are over are deleted", func() error {
			_ = beat(t, l)
			if left := h.Leftovers(t, "brief"); len(left) != want {
				return fmt.Errorf("%d are there, want %d", len(left), want)
			}
			return nil
		})
	}
	left(1)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	left(0)
}
