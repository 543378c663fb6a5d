package redislock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func (s *still) recordKeys(name string) []string {
	return []string{s.k.record + name, s.k.records, s.k.recordEnds}
}

func (s *still) write(name, after, version, value string, keep time.Duration) string {
	s.t.Helper()
	return s.run(scriptWriteRecord, s.recordKeys(name), name+"\x00", after, version, value, keep.Milliseconds())
}

func (s *still) remove(name, after string) string {
	s.t.Helper()
	return s.run(scriptDeleteRecord, s.recordKeys(name), name+"\x00", after)
}

// records compares the names of the records, and until when each is kept.
func (s *still) records(want string) {
	s.t.Helper()
	if got := s.content(s.k.recordEnds); got != want {
		s.t.Errorf("got the ends\n\t%s\nwant\n\t%s", got, want)
	}
	var names []string
	for n := range strings.SplitSeq(want, ", ") {
		if name, _, ok := strings.Cut(n, "="); ok {
			names = append(names, name+"=0")
		}
	}
	slices.Sort(names)
	if got := s.content(s.k.records); got != strings.Join(names, ", ") {
		s.t.Errorf("got the names\n\t%s\nwant\n\t%s", got, names)
	}
}

// A record is written, read and taken away by its version, and Redis forgets it by itself.
func TestScriptsRecord(t *testing.T) {
	s := newStill(t)
	s.want(s.write("a", "v0", "v1", "one", time.Minute), "0")
	s.want(s.content(s.k.record+"a"), "")
	s.want(s.write("a", "", "v1", "one two", time.Minute), "1")
	s.want(s.content(s.k.record+"a"), "v1 T one two")
	s.records("a|=T+60s")
	s.at(1)
	s.want(s.write("a", "", "v1", "other", time.Hour), "1") // the same again changes nothing
	s.want(s.content(s.k.record+"a"), "v1 T one two")
	s.want(s.write("a", "", "v2", "two", time.Minute), "0")
	s.want(s.write("a", "v", "v2", "two", time.Minute), "0")
	s.want(s.write("b", "", "v1", "", 2*time.Minute), "1")
	s.want(s.write("a", "v1", "v2", "two", time.Hour), "1")
	s.want(s.content(s.k.record+"a"), "v2 T+1 two")
	s.records("b|=T+120s+1, a|=T+3600s+1")
	if left := s.life(s.k.record + "a"); left <= 59*time.Minute || left > time.Hour {
		t.Errorf("the record is kept for %s", left)
	}
	s.at(2 * second)
	s.want(s.run(scriptReadRecord, s.recordKeys("a")[:1]), "[T+2s v2 T+1 two]")
	s.want(s.run(scriptReadRecord, s.recordKeys("c")[:1]), "nil")
	s.want(s.remove("a", "v1"), "0")
	s.want(s.remove("a", ""), "0")
	s.want(s.remove("c", "v1"), "1")
	s.want(s.remove("a", "v2"), "1")
	s.want(s.content(s.k.record+"a"), "")
	s.records("b|=T+120s+1")
}

// The names of records that are over go by writes, by heartbeats, and with a look for dead
// leases, some at a time (law 10).
func TestScriptsForgetRecords(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	const many = 70
	for i := range many {
		s.want(s.write(fmt.Sprintf("old%02d", i), "", "v", "", time.Second), "1")
	}
	s.at(second - 1)
	count := func(want int64) {
		t.Helper()
		names, ends := s.b.client.ZCard(t.Context(), s.k.records).Val(), s.b.client.ZCard(t.Context(), s.k.recordEnds).Val()
		if names != want || ends != want {
			t.Errorf("%d names and %d ends are there, want %d", names, ends, want)
		}
	}
	s.want(s.find("aa", "0"), "")
	count(many)
	s.at(second)
	s.want(s.write("new", "", "v", "", time.Minute), "1")
	count(many + 1 - 8)
	if reply := s.run(scriptHeartbeat, s.beatKeys("aa"), "aa", ttl, "0", "0"); !strings.HasPrefix(reply, "[f00d") {
		t.Error(reply)
	}
	count(many + 1 - 8)
	s.want(s.find("aa", "0"), "")
	s.records("new|=T+61s")
	s.at(61 * second)
	s.open("bb")
	s.want(s.beat("bb"), "[f00d 0 T 0 [] aa]")
	s.records("")
}

// What became of a hold is noted although the memory is full; a record of another name is not.
func TestFullMemoryOfRecords(t *testing.T) { again(t, testFullMemoryOfRecords) }

func testFullMemoryOfRecords(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b, _ := sidecar(t, s.URL()+noGrace+"&timeout=10s", 5*time.Minute)
	write := func(name, after, version string) error {
		return b.WriteRecord(t.Context(), lock.Resource(name), after, lock.Record{Version: version, Value: []byte(version)}, time.Hour)
	}
	if err := write("there", "", "v1"); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"maxmemory": "1mb", "maxmemory-policy": "noeviction"} {
		if err := b.client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := write("new", "", "v1"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a new record: got %v, want ErrUnavailable", err)
	}
	if err := write("there", "v1", "v2"); err != nil {
		t.Errorf("another version: %v", err)
	}
	if rec, err := b.ReadRecord(t.Context(), "there"); err != nil || rec.Version != "v2" {
		t.Errorf("read %+v, %v", rec, err)
	}
	if all, err := b.ListRecords(t.Context(), "", lock.Page{}); err != nil || len(all) != 1 {
		t.Errorf("listed %+v, %v", all, err)
	}
	if err := b.DeleteRecord(t.Context(), "there", "v2"); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// A write that too few replicas have has an unknown outcome.
func TestRecordWaitsForReplicas(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b := openBackend(t, s.URL()+"?wait-replicas=1")
	eventually(t, "the record is written", func() error {
		if err := b.WriteRecord(t.Context(), "r", "", lock.Record{Version: "v"}, time.Hour); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		rec, err := b.ReadRecord(t.Context(), "r")
		if err == nil && rec.Version != "v" {
			err = fmt.Errorf("read %+v", rec)
		}
		return err
	})
}
