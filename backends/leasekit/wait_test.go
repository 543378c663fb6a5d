package leasekit

import (
	"testing"
	"time"
)

// TestPace: who looks so often learns at most a quarter later than it could, and looks seldom at what lasts.
func TestPace(t *testing.T) {
	const least = 50 * time.Millisecond
	looks := 0
	for at := time.Duration(0); at < time.Minute; looks++ {
		pause := Pace(at, least)
		if pause < least || pause > max(at/4, least) || pause > time.Second {
			t.Fatalf("after %s: a pause of %s", at, pause)
		}
		at += pause
	}
	if looks > 80 {
		t.Errorf("%d looks in a minute", looks)
	}
}
