package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func recordOf(version string) lock.Record {
	return lock.Record{Version: version, Value: []byte(version + "\x00\xff'?")}
}

// is compares the version and the value of a record.
func is(t testing.TB, b lock.Records, name lock.Resource, want lock.Record) {
	t.Helper()
	got, err := b.ReadRecord(t.Context(), name)
	if err != nil || got.Version != want.Version || string(got.Value) != string(want.Value) {
		t.Errorf("the record is %q with %q, %v; want %q", got.Version, got.Value, err, want.Version)
	}
}

// An app writes a record in its own transaction: with its data or not at all. While that
// is open, writes of that record wait for no row and take no connection, so that all else
// goes on.
func TestRecordGuard(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, with(s.URL(), "max-connections=2"), 30*time.Second)
		a := newApp(t, b, "&time_zone='-05:30'")
		r, other := unique("r"), unique("other")
		write := func(ctx context.Context, name lock.Resource, after, version string) error {
			return b.WriteRecord(ctx, name, after, recordOf(version), time.Hour)
		}
		if err := write(t.Context(), r, "", "v1"); err != nil {
			t.Fatal(err)
		}
		tx := a.begin(1)
		if !tx.guarded(b.RecordGuard(r, "v1", recordOf("app"), time.Hour)) {
			t.Fatal("the guard changes no row")
		}
		is(t, b, r, recordOf("v1"))
		const many = 40
		blocked := make(chan error, many)
		long, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range many {
			go func() { blocked <- write(long, r, "v1", fmt.Sprint("late", i)) }()
		}
		for i := range 5 {
			g := hold(t, l, unique("lock"))
			if err := errors.Join(l.Release(t.Context(), g.Resource, g.ID), write(t.Context(), unique(fmt.Sprint(other, i)), "", "v1")); err != nil {
				t.Errorf("beside a row that an app has locked: %v", err)
			}
		}
		short, end := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer end()
		if err := b.DeleteRecord(short, r, "v1"); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("DeleteRecord while an app writes: %v", err)
		}
		cancel()
		for range many {
			if err := <-blocked; !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("WriteRecord while an app writes: %v", err)
			}
		}
		tx.rollBack()
		// What was on its way when its caller left may come through until another write has.
		var at string
		eventually(t, "a write after the roll-back comes through", func() error {
			now, err := b.ReadRecord(t.Context(), r)
			if at = string(lock.NewHoldID()); err == nil {
				err = write(t.Context(), r, now.Version, at)
			}
			if now.Version == "app" {
				t.Fatal("what was rolled back is there")
			}
			return err
		})

		tx = a.begin(1)
		if tx.guarded(b.RecordGuard(r, "v1", recordOf("app"), time.Hour)) {
			t.Error("the guard of another version changes a row")
		}
		if !tx.guarded(b.RecordGuard(r, at, recordOf("app"), time.Second)) {
			t.Error("the guard changes no row")
		}
		waiting := make(chan error, 1)
		go func() { waiting <- write(t.Context(), r, at, "v3") }()
		tx.commit()
		if err := <-waiting; !errors.Is(err, lock.ErrRecordChanged) {
			t.Errorf("WriteRecord after a commit: %v", err)
		}
		eventually(t, "the record that the app wrote is over", func() error {
			rec, err := b.ReadRecord(t.Context(), r)
			if err == nil && rec.Version != "" {
				err = fmt.Errorf("it is %q, %s old", rec.Version, rec.Age)
			}
			return err
		})
		tx = a.begin(1)
		if tx.guarded(b.RecordGuard(r, "app", recordOf("v4"), time.Hour)) {
			t.Error("the guard of a record that is over changes a row")
		}
	})
}

// Records that are over are deleted some at a time, but for one that an app has locked.
func TestReapRecords(t *testing.T) {
	t.Parallel()
	again(t, testReapRecords)
}

func testReapRecords(t testing.TB) {
	var stores []*store
	var locked []*transfer
	for _, kind := range kinds { // at the same time, in the place of one test
		b, l := sidecar(t, own(t, testengine.Shared(t, kind), "records_"), 3*time.Second)
		keepAlive(t, t.Context(), l)
		stores, locked = append(stores, b), append(locked, lockRecord(t, b, newApp(t, b, "")))
		for i := range 210 { // more than two steps
			if err := b.WriteRecord(t.Context(), lock.Resource(fmt.Sprint("r", i)), "", recordOf("v1"), 3*time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func(want int64) {
		t.Helper()
		for _, b := range stores {
			eventually(t, "records that are over are deleted", func() error {
				if n := number(t, b, "SELECT COUNT(*) FROM {record}"); n != want {
					return fmt.Errorf("%s: %d are there, want %d", b.d.cfg.Addrs, n, want)
				}
				return nil
			})
		}
	}
	left(1)
	for _, tx := range locked {
		tx.rollBack()
	}
	left(0)
}

// lockRecord has an app lock a record that is soon over.
func lockRecord(t testing.TB, b *store, a *app) (tx *transfer) {
	t.Helper()
	eventually(t, "an app has locked a record that is soon over", func() error {
		there, err := b.ReadRecord(t.Context(), "frozen")
		version := string(lock.NewHoldID())
		if err == nil {
			err = b.WriteRecord(t.Context(), "frozen", there.Version, recordOf(version), 2*time.Second)
		}
		if err != nil {
			return err
		}
		if tx = a.begin(2); !tx.guarded(b.RecordGuard("frozen", version, recordOf("app"), time.Second)) {
			tx.rollBack()
			return errors.New("it was over")
		}
		return nil
	})
	return tx
}

// Tables that were made before there were records get theirs, where the sidecar may make it.
func TestRecordsInOlderTables(t *testing.T) {
	t.Parallel()
	again(t, testRecordsInOlderTables)
}

func testRecordsInOlderTables(t testing.TB) {
	url := own(t, testengine.Shared(t, testengine.MariaDB), "older_")
	older, _ := sidecar(t, url, 30*time.Second)
	execute(t, older, "DROP TABLE {record}")
	fixed := openAt(t, with(url, "migrate=false"))
	defer func() { _ = fixed.Close() }()
	if _, err := fixed.ReadRecord(t.Context(), "r"); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "locksidecar schema mysql") {
		t.Errorf("without the table: %v", err)
	}
	b, _ := sidecar(t, url, 30*time.Second)
	if err := b.WriteRecord(t.Context(), "r", "", recordOf("v1"), time.Hour); err != nil {
		t.Errorf("WriteRecord: %v", err)
	}
	is(t, fixed, "r", recordOf("v1"))
}
