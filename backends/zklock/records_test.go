package zklock

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func recordOf(version string) lock.Record {
	return lock.Record{Version: version, Value: []byte(version)}
}

// wrote writes a record, again and again where ZooKeeper does not answer in time.
func wrote(t testing.TB, b *Backend, r lock.Resource, keep time.Duration) error {
	return answered(t, func() error { return b.WriteRecord(t.Context(), r, "", recordOf("v"), keep) })
}

// A record that was deleted and written again between the reading of it and the write over
// it is another one, though its node has the same data version.
func TestRecordWrittenAgainIsAnother(t *testing.T) { again(t, testRecordWrittenAgainIsAnother) }

func testRecordWrittenAgainIsAnother(t testing.TB) {
	url := testengine.Shared(t, testengine.ZooKeeper).URL() + "/records-again-" + string(unique())
	b, _ := sidecar(t, url, 30*time.Second)
	other, _ := sidecar(t, url, 30*time.Second)
	ctx := t.Context()
	if err := b.WriteRecord(ctx, "r", "", recordOf("v1"), time.Hour); err != nil {
		t.Fatal(err)
	}
	ask, err := b.askThrough(ctx)
	if err != nil {
		t.Fatal(err)
	}
	k, err := b.readKept(ctx, ask, "r", true)
	if err != nil || k.Version != "v1" {
		t.Fatalf("read %+v, %v", k.Record, err)
	}
	if err := errors.Join(other.DeleteRecord(ctx, "r", "v1"), other.WriteRecord(ctx, "r", "", recordOf("v2"), time.Hour)); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]*zksession.Call{
		"the sweep": b.deleteRecords(k.bucket, k.node),
		"a write":   zksession.Multi(zksession.Check(k.bucket), zksession.Set(k.node.Of(), recordData(recordOf("v3"), time.Hour), k.node.Stat.Version)),
	} {
		if err := ask.s.Do(ctx, call); err != nil || !errors.Is(call.Err, zksession.ErrBadVersion) {
			t.Errorf("%s: %v, %v, want ErrBadVersion", what, err, call.Err)
		}
	}
	if rec, err := b.ReadRecord(ctx, "r"); err != nil || rec.Version != "v2" {
		t.Errorf("read %+v, %v", rec, err)
	}
	if err := b.DeleteRecord(ctx, "r", "v2"); err != nil {
		t.Error(err)
	}
}

// The list of a bucket fits into a packet, with 100,000 records of the longest names.
func TestRecordBucketsFitIntoAPacket(t *testing.T) {
	const longest = 4 + 3*lock.MaxResourceBytes // each byte escaped
	sizes := make(map[string]int)
	for i := range 100_000 {
		sizes[bucket(lock.Resource(fmt.Sprint("orders/", i)))] += longest
	}
	for name, size := range sizes {
		if size > 1<<20-4096 {
			t.Errorf("the list of bucket %s has %d bytes", name, size)
		}
	}
}

// What is over is deleted in turns of one sidecar: on and on where much is over, else with
// few reads, and each turn goes on where the last one ended.
func TestRecordsAreSwept(t *testing.T) { again(t, testRecordsAreSwept) }

func testRecordsAreSwept(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	var reads atomic.Int64
	b := openAt(t, s.URL()+"/records-swept-"+string(unique()))
	t.Cleanup(func() { _ = b.Close() })
	b.sweepEvery = time.Hour // nobody but the test sweeps
	b.observe = func(command string, _ time.Duration, _ error) {
		if command == "children" || command == "get" {
			reads.Add(1)
		}
	}
	l := newLease(t, b, 30*time.Second)
	beating(t, l, time.Second)
	c := stranger(t, s.URL())
	left := func(want int) error {
		buckets, _, err := c.Children(b.tree.records())
		if err != nil {
			return err
		}
		var n atomic.Int64
		errs := make(chan error, len(buckets))
		for _, bucket := range buckets {
			go func() {
				names, _, err := c.Children(b.tree.records() + "/" + bucket)
				n.Add(int64(len(names)))
				errs <- err
			}()
		}
		for range buckets {
			err = errors.Join(err, <-errs)
		}
		if err == nil && n.Load() != int64(want) {
			err = fmt.Errorf("%d are there", n.Load())
		}
		return err
	}
	write := func(n int, keep time.Duration) {
		t.Helper()
		errs := make(chan error, n)
		for i, left := 0, n; left > 0; i++ {
			name := lock.Resource(fmt.Sprint(keep, "/", i))
			if bucket(name) >= "20" { // 32 buckets make a test that a busy machine does in time
				continue
			}
			left--
			go func() { errs <- wrote(t, b, name, keep) }()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
	sweep := func(every time.Duration) error {
		return l.driver.sweepOnce(t.Context(), l.driver.recordsChore(), every)
	}
	const few, many, looks, buckets = 100, 500, 50, 32
	write(few, time.Hour)
	write(many, lock.MinKeep)
	b.sweepLooks = looks
	turns := 0
	eventually(t, "what is over is gone", func() error {
		turns++
		return errors.Join(sweep(0), left(few))
	})
	t.Logf("%d turns", turns)
	write(10, lock.MinKeep)
	eventually(t, "what is over is gone though little is", func() error {
		for range 2 * (few + 10 + buckets) / looks { // every bucket, more than once
			reads.Store(0)
			if err := sweep(0); err != nil {
				return err
			}
			if n := reads.Load(); n > 2*looks+buckets {
				t.Errorf("%d reads in a turn in which little is over", n)
			}
		}
		return left(few)
	})
	eventually(t, "a sweep when it is not the turn of this sidecar", func() error {
		reads.Store(0)
		if err := sweep(time.Hour); err != nil {
			return err
		}
		if n := reads.Load(); n != 1 {
			t.Errorf("%d reads when it is not the turn of this sidecar", n)
		}
		return nil
	})
	if all, err := b.ListRecords(t.Context(), "", lock.Page{}); err != nil || len(all) != few {
		t.Errorf("%d are listed, %v", len(all), err)
	}
}

// Sweeps come behind heartbeats alone: what a lease without heartbeats asks for would keep its
// session, and what others wait for, longer than its TTL lets it.
func TestSweepsKeepNoLeaseAlive(t *testing.T) { again(t, testSweepsKeepNoLeaseAlive) }

func testSweepsKeepNoLeaseAlive(t testing.TB) {
	b := openAt(t, testengine.Shared(t, testengine.ZooKeeper).URL()+"/records-silent-"+string(unique()))
	t.Cleanup(func() { _ = b.Close() })
	c := new(counter)
	b.observe, b.sweepEvery = c.observe, 20*time.Millisecond
	silent := newLease(t, b, time.Second)
	c.take()
	eventually(t, "the lease is overdue", func() error {
		if !silent.driver.set.Overdue() {
			return errors.New("it is not")
		}
		return nil
	})
	if asked, n := c.take(); n > 0 {
		t.Errorf("a lease without heartbeats has asked for %v", asked)
	}
	l := newLease(t, b, 30*time.Second)
	c.take()
	eventually(t, "a sweep begins", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		if asked, _ := c.take(); asked["get"] == 0 {
			return fmt.Errorf("the sidecar has asked for %v", asked)
		}
		return nil
	})
}

// A lease that is overdue sweeps no further: the machine slept in the middle of a sweep.
func TestSweepEndsWithItsLease(t *testing.T) { again(t, testSweepEndsWithItsLease) }

func testSweepEndsWithItsLease(t testing.TB) {
	b := openAt(t, testengine.Shared(t, testengine.ZooKeeper).URL()+"/records-asleep-"+string(unique()))
	t.Cleanup(func() { _ = b.Close() })
	var slept atomic.Int64
	var armed atomic.Bool
	var asked atomic.Int64
	b.clock = func() time.Duration { return lock.BootTime() + time.Duration(slept.Load()) }
	b.observe = func(command string, _ time.Duration, _ error) {
		if armed.Load() {
			asked.Add(1)
			if command == "children" {
				slept.Store(int64(time.Hour))
			}
		}
	}
	l := newLease(t, b, 30*time.Second)
	for i := range 8 {
		if err := wrote(t, b, lock.Resource(fmt.Sprint("r", i)), 2*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	armed.Store(true)
	if err := l.driver.sweepOnce(t.Context(), l.driver.recordsChore(), 0); err != nil {
		t.Errorf("sweep: %v", err)
	}
	armed.Store(false)
	if n := asked.Load(); n > 3 { // whose turn it is, and the buckets
		t.Errorf("%d requests of a sweep, most of them by an overdue lease", n)
	}
}

// A bucket of many records is swept in several turns, each of few reads.
func TestLargeBucketIsSweptInSteps(t *testing.T) { again(t, testLargeBucketIsSweptInSteps) }

func testLargeBucketIsSweptInSteps(t testing.TB) {
	var reads atomic.Int64
	url := testengine.Shared(t, testengine.ZooKeeper).URL()
	b := openAt(t, url+"/records-bucket-"+string(unique()))
	t.Cleanup(func() { _ = b.Close() })
	b.sweepLooks, b.sweepEvery = 10, time.Hour // nobody but the test sweeps
	b.observe = func(command string, _ time.Duration, _ error) {
		if command == "get" {
			reads.Add(1)
		}
	}
	l := newLease(t, b, 30*time.Second)
	beating(t, l, time.Second)
	const n = 3 * sweepStep
	names := sameBucket(n)
	errs := make(chan error, n)
	for i, r := range names {
		keep := time.Hour
		if i == n-1 {
			keep = lock.MinKeep
		}
		go func() { errs <- wrote(t, b, r, keep) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	path := b.tree.record(names[n-1])
	c := stranger(t, url)
	eventually(t, "what is over is gone", func() error {
		reads.Store(0)
		if err := l.driver.sweepOnce(t.Context(), l.driver.recordsChore(), 0); err != nil {
			return err
		}
		if n := reads.Load(); n > sweepStep+8 {
			t.Errorf("%d reads in a turn", n)
		}
		there, _, err := c.Exists(path)
		if err == nil && there {
			err = errors.New("it is there")
		}
		return err
	})
}

// Records of one bucket are taken away at the same time: each of them is.
func TestRecordsOfABucketAreDeletedAtOnce(t *testing.T) {
	again(t, testRecordsOfABucketAreDeletedAtOnce)
}

func testRecordsOfABucketAreDeletedAtOnce(t testing.TB) {
	url := testengine.Shared(t, testengine.ZooKeeper).URL() + "/records-at-once-" + string(unique())
	a, _ := sidecar(t, url, 30*time.Second)
	b, _ := sidecar(t, url, 30*time.Second)
	const n = 12
	names := sameBucket(n)
	for _, r := range names {
		if err := wrote(t, a, r, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, n)
	for i, r := range names {
		go func() {
			errs <- answered(t, func() error { return []*Backend{a, b}[i%2].DeleteRecord(t.Context(), r, "v") })
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// sameBucket are names of the same bucket.
func sameBucket(n int) (all []lock.Resource) {
	for i := 0; len(all) < n; i++ {
		if r := lock.Resource(fmt.Sprint("r", i)); bucket(r) == bucket("r0") {
			all = append(all, r)
		}
	}
	return all
}

// Requests about records that are near their end ask for the leader's time, each by itself:
// several heartbeats of one lease node at a time.
func TestHeartbeatsOfOneNodeAtATime(t *testing.T) { again(t, testHeartbeatsOfOneNodeAtATime) }

func testHeartbeatsOfOneNodeAtATime(t testing.TB) {
	_, l := sidecar(t, testengine.Shared(t, testengine.ZooKeeper).URL(), 30*time.Second)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() { errs <- l.driver.leaseNode.beat(t.Context()) }()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Errorf("a heartbeat: %v", err)
		}
	}
}
