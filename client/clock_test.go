package client

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// However late a message is read, the moment it names is not later than the
// sidecar meant it.
func TestSidecarClock(t *testing.T) {
	const ahead = 3 * time.Hour // our clock shows so much more than the sidecar's
	at := func(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
	var c sidecarClock
	end := func() time.Duration { return c.ours(endOf(at(20*time.Second), at(10*time.Second))) - ahead } // meant: 30s
	c.answered(10*time.Second+ahead, at(11*time.Second))                                                 // one second on the way, or in the queue
	if got := end(); got != 29*time.Second {
		t.Errorf("end at %s", got)
	}
	c.answered(12*time.Second+ahead, at(12*time.Second+time.Millisecond)) // a quick one tells more
	if got := end(); got != 30*time.Second-time.Millisecond {
		t.Errorf("end at %s", got)
	}
	c.answered(13*time.Second+ahead, at(19*time.Second)) // a slow one tells nothing
	if got := end(); got != 30*time.Second-time.Millisecond {
		t.Errorf("end at %s", got)
	}
}
