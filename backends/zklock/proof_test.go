package zklock

import (
	"testing"
	"time"
)

// TestProof: times are in tenths of a TTL.
func TestProof(t *testing.T) {
	const ttl = 10 * time.Second
	type beat struct {
		sent, answered int
		proves         bool
	}
	for name, beats := range map[string][]beat{
		"in time":                     {{3, 4, true}, {6, 7, true}, {15, 15, true}},
		"answered late":               {{3, 4, true}, {9, 14, false}},
		"the first too long ago":      {{9, 14, false}, {19, 20, false}},
		"late, then proved":           {{12, 13, false}, {18, 19, true}, {26, 27, true}},
		"late, then asked too soon":   {{12, 13, false}, {14, 15, false}, {16, 17, false}, {18, 19, true}},
		"late, and late again":        {{12, 13, false}, {24, 25, false}, {30, 31, true}},
		"an older one comes in later": {{3, 4, true}, {2, 5, true}},
		"late by the answer of two":   {{9, 11, false}, {16, 20, false}},
	} {
		p := newProof(ttl, 0)
		for i, b := range beats {
			if got := p.beat(time.Duration(b.sent)*time.Second, time.Duration(b.answered)*time.Second); got != b.proves {
				t.Errorf("%s: beat %d proves %t, want %t", name, i, got, b.proves)
			}
		}
	}
	p := newProof(ttl, 0)
	p.beat(3*time.Second, 4*time.Second)
	if p.overdue(12*time.Second) || !p.overdue(13*time.Second) {
		t.Error("a lease is overdue a TTL after its last heartbeat was sent")
	}
	p.beat(14*time.Second, 15*time.Second)
	if !p.overdue(15 * time.Second) {
		t.Error("a late heartbeat alone renews the lease")
	}
}

func TestServerTime(t *testing.T) {
	var s serverTime
	s.saw(5000, 150*time.Millisecond)
	if ago := s.since(4000, 250*time.Millisecond); ago != 1099*time.Millisecond {
		t.Errorf("%s ago", ago)
	}
	if ago := s.since(9000, 250*time.Millisecond); ago != 0 {
		t.Errorf("%s ago, of what is in the future", ago)
	}
}
