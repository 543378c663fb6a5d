package client_test

import (
	"errors"
	"testing"

	"github.com/locksidecar/locksidecar/client"
)

// What cannot be sent is refused as the sidecar would.
func TestNamesThatAreNoText(t *testing.T) {
	c := start(t).dial(t)
	const bad = "a\xff"
	check := func(what, field string, err error) {
		t.Helper()
		var said *client.Error
		if !errors.Is(err, client.ErrInvalidRequest) || !errors.As(err, &said) || said.Metadata["field"] != field {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := c.OpenSession(t.Context(), client.SessionOptions{Name: bad})
	check("name", "name", err)
	_, err = c.OpenSession(t.Context(), client.SessionOptions{Metadata: map[string]string{"k": bad}})
	check("value", "metadata", err)
	_, err = c.OpenSession(t.Context(), client.SessionOptions{Metadata: map[string]string{bad: "v"}})
	check("key", "metadata", err)
	_, err = c.Get(t.Context(), bad)
	check("get", "resource", err)
	told := 0
	for _, err := range c.List(t.Context(), bad) {
		check("list", "prefix", err)
		told++
	}
	for _, err := range c.Watch(t.Context(), bad, 0) {
		check("watch", "prefix", err)
		told++
	}
	if told != 2 {
		t.Errorf("%d errors of two", told)
	}
	_, err = c.ForceRelease(t.Context(), bad, "", 0)
	check("force", "resource", err)
	_, err = c.ForceRelease(t.Context(), "r", bad, 0)
	check("force", "lock_id", err)
}
