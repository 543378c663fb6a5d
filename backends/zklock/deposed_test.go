package zklock

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestThroughADeposedLeader: the leader stands still, and another one is elected, at which locks are taken and records written. When the
// old one goes on, it answers what it was asked before it hears of that. Whoever forces the release of such a lock there is not told that
// nobody has it. Who reads a record gets the newest, and who deletes one is not told that it is gone while it is there.
func TestThroughADeposedLeader(t *testing.T) { again(t, testThroughADeposedLeader) }

func testThroughADeposedLeader(t testing.TB) {
	s := testengine.New(t, testengine.ZooKeeperSlowTicks) // a leader hears within two ticks that it is none any more
	lead, rest := leader(t, s)
	b, l := sidecar(t, "zk://"+lead.Addr()+"?timeout=13s", 40*time.Second)
	rb, rl := sidecar(t, "zk://"+lead.Addr()+"?timeout=13s", 40*time.Second) // whose reads stand behind no write of the first one
	ob, o := sidecar(t, "zk://"+rest[0].Addr()+","+rest[1].Addr(), 40*time.Second)
	told := live(t, o)
	write := func(r lock.Resource, after, version string) {
		t.Helper()
		err := answered(t, func() error { return ob.WriteRecord(t.Context(), r, after, recordOf(version), time.Hour) })
		if err != nil {
			t.Fatal(err)
		}
	}
	q := request(unique(), lock.Exclusive)
	read, deleted := unique(), unique()
	release(t, o, hold(t, o, q.Resource, lock.Exclusive))
	write(read, "", "v1")
	eventually(t, "it is renewed", func() error { return errors.Join(beat(t.Context(), l), beat(t.Context(), rl)) })
	resume := testengine.Pause(t, lead)
	forced, found, gone := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { forced <- b.ForceRelease(t.Context(), q.Resource, q.ID, time.Hour) }()
	var rec lock.Record
	go func() {
		found <- answered(t, func() (err error) { rec, err = rb.ReadRecord(t.Context(), read); return err })
	}()
	go func() {
		gone <- answered(t, func() error { return rb.DeleteRecord(t.Context(), deleted, "v1") })
	}()
	g := granted(t, o, q)
	write(read, "v1", "v2")
	write(deleted, "", "v1")
	resume()
	if err := <-found; err != nil || rec.Version != "v2" {
		t.Errorf("read %+v, %v, want v2", rec, err)
	}
	if err := <-gone; err != nil {
		t.Errorf("DeleteRecord: %v", err)
	}
	err := answered(t, func() (err error) { rec, err = ob.ReadRecord(t.Context(), deleted); return err })
	if err != nil || rec.Version != "" {
		t.Errorf("a record that is said to be gone is there: %+v, %v", rec, err)
	}
	select {
	case err := <-forced:
		t.Fatalf("ForceRelease, while another sidecar has the lock: %v", err)
	case <-told.hears(g.ID):
	}
	release(t, o, g)
	if err := <-forced; err != nil {
		t.Errorf("ForceRelease: %v", err)
	}
}

// hears is closed when the app is told of a forced release.
func (a *app) hears(id lock.HoldID) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		for a.t.Context().Err() == nil {
			a.mu.Lock()
			_, told := a.told[id]
			a.mu.Unlock()
			if told {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return c
}
