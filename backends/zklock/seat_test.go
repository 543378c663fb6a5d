package zklock

import (
	"testing"
	"time"
)

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
