package client_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/client"
)

// Locks with many holders, which tell much about themselves, are listed in full.
func TestLargeLocks(t *testing.T) {
	const sessions, locks, readers = 6, 1000, 4000
	s := start(t)
	c := s.dial(t)
	var last *client.Session
	for range sessions {
		var err error
		last, err = c.OpenSession(t.Context(), client.SessionOptions{Metadata: map[string]string{"k": strings.Repeat("v", 1000)}})
		if err != nil {
			t.Fatal(err)
		}
		for n := range locks {
			acquire(t, last, "many/"+strconv.Itoa(n), client.AcquireOptions{Mode: client.Shared})
		}
	}
	for n := range readers {
		acquire(t, last, "one", client.AcquireOptions{Mode: client.Shared, Owner: strconv.Itoa(n)})
	}
	n := 0
	for l, err := range c.List(t.Context(), "many/") {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if len(l.GetHolders()) != sessions {
			t.Fatalf("%s has %d holders", l.GetResource(), len(l.GetHolders()))
		}
	}
	if n != locks {
		t.Errorf("%d locks are listed", n)
	}
	l, err := c.Get(t.Context(), "one")
	if err != nil || len(l.GetHolders()) != readers {
		t.Errorf("%d holders, %v", len(l.GetHolders()), err)
	}
}
