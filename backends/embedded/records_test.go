package embedded

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The memory for records has a bound. When all of them are over at once, others are let in
// between the steps, and at the end nothing is left.
func TestRecordsEndInSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(WithClock(lock.GoTime()))
		defer s.Close()
		write := func(name string, keep time.Duration) error {
			return s.WriteRecord(t.Context(), lock.Resource(name), "", lock.Record{Version: "v"}, keep)
		}
		for i := range maxRecords {
			if err := write(strconv.Itoa(i), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if err := write("more", time.Minute); !errors.Is(err, lock.ErrLimit) {
			t.Errorf("one more than the store takes: %v", err)
		}
		if err := s.WriteRecord(t.Context(), "0", "v", lock.Record{Version: "w"}, time.Minute); err != nil {
			t.Errorf("another version of one that is there: %v", err)
		}
		s.mu.Lock()
		s.forget(s.clock() + time.Minute)
		if left := len(s.records); left != maxRecords-forgetStep {
			t.Errorf("one step leaves %d records", left)
		}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if err := write("more", 2*time.Minute); err != nil {
			t.Errorf("where the others are over: %v", err)
		}
		time.Sleep(recordCheck)
		synctest.Wait()
		if all, err := s.ListRecords(t.Context(), "", lock.Page{}); err != nil || len(all) != 1 {
			t.Errorf("%v, %v are listed", all, err)
		}
		s.mu.Lock()
		if n := len(s.records); n != 1 {
			t.Errorf("%d are kept", n)
		}
		s.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.empty(t)
	})
}

func TestClosedStoreKeepsNoRecords(t *testing.T) {
	s := New()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, read := s.ReadRecord(t.Context(), "r")
	_, list := s.ListRecords(t.Context(), "", lock.Page{})
	for what, err := range map[string]error{
		"ReadRecord": read, "ListRecords": list,
		"WriteRecord":  s.WriteRecord(t.Context(), "r", "", lock.Record{Version: "v"}, time.Minute),
		"DeleteRecord": s.DeleteRecord(t.Context(), "r", "v"),
	} {
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
