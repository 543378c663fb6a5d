package main

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// What looks at a store without a sidecar says what the store's driver says.
func TestLookSaysWhy(t *testing.T) {
	t.Parallel()
	for _, look := range []string{"list", "outcomes", "outcomes reset job", "deadlocks"} {
		args := append(strings.Fields(look), "--store", "redis://127.0.0.1:1")
		if got := cli(t, args...); got.code != exitUnavailable && got.code != exitFailure || !strings.Contains(got.err, "connection refused") || strings.Contains(got.err, "no lease") {
			t.Errorf("%s: %+v", look, got)
		}
	}
}

// A store that answers late is looked at again.
func TestLookAtALateStore(t *testing.T) {
	t.Parallel()
	server := testengine.New(t, testengine.Redis)
	args := []string{"--store", storeURL(server), "--namespace", namespace(t)}
	if got := cli(t, append(append([]string{"once"}, args...), "job", "--", "true")...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, look := range []string{"list", "outcomes", "deadlocks"} {
		resume := testengine.Pause(t, server)
		p := launch(t, nil, binary, append([]string{look}, args...)...)
		time.Sleep(1500 * time.Millisecond) // the driver's limit is a second
		resume()
		p.wait()
		if p.code != 0 {
			t.Errorf("%s: status %d, %s", look, p.code, p.err.String())
		}
	}
}
