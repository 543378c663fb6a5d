package zksession

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestExpired: a session without requests ends though its process and its
// connection live; it hears of that, and nothing is sent in another one.
func TestExpired(t *testing.T) {
	t.Parallel()
	url := testengine.Shared(t, testengine.ZooKeeper).URL()
	s := open(t, url, func(c *Config) { c.SessionTimeout = 4 * time.Second }) // a busy machine may stand still for seconds
	other := open(t, url, nil)
	began := time.Now()
	must(t, s, Create("/expired", nil, world, Ephemeral))
	for {
		get := Get("/expired")
		if err := other.Do(t.Context(), get); err != nil {
			t.Fatal(err)
		}
		if errors.Is(get.Err, ErrNoNode) {
			break
		}
		if time.Since(began) > patience {
			t.Fatal("the session does not end")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(began); took < s.timeout*9/10 {
		t.Errorf("it ended after %s, before its timeout of %s", took, s.timeout)
	}
	late := Create("/late", nil, world, Persistent)
	if err := s.Do(t.Context(), late); !errors.Is(err, ErrExpired) && !errors.Is(err, ErrLost) {
		t.Errorf("a request of a session that is over: %v", err)
	}
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("it does not hear of its end")
	}
	if !errors.Is(s.Err(), ErrExpired) {
		t.Errorf("it is over because %v", s.Err())
	}
	get := Get("/late")
	if err := other.Do(t.Context(), get); err != nil || !errors.Is(get.Err, ErrNoNode) {
		t.Errorf("a request was carried out in another session: %v, %v", err, get.Err)
	}
	if err := other.Err(); err != nil {
		t.Errorf("the other session, which is kept alive: %v", err)
	}
}

// TestExpiredUnasked: a session whose app asks for nothing hears of its end too.
func TestExpiredUnasked(t *testing.T) {
	t.Parallel()
	s := open(t, testengine.Shared(t, testengine.ZooKeeper).URL(), func(c *Config) { c.SessionTimeout = time.Second })
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("it does not hear of its end")
	}
	if !errors.Is(s.Err(), ErrExpired) {
		t.Errorf("it is over because %v", s.Err())
	}
}

// TestNobodyThere: no server accepts the session.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, err := Open(t.Context(), Config{Addrs: []string{"127.0.0.1:1", "127.0.0.2:1"}, SessionTimeout: 10 * time.Second, Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "127.0.0.2:1") {
		t.Errorf("got %v, want an error that names both", err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %s", took)
	}
}

// TestDownForAWhile: requests wait for a connection as long as they may, and
// closing a session that cannot be reached does not hang.
func TestDownForAWhile(t *testing.T) {
	t.Parallel()
	server := testengine.New(t, testengine.ZooKeeper)
	s := open(t, server.URL(), func(c *Config) { c.Timeout = 3 * time.Second })
	testengine.Crash(t, server, testengine.KeepData)
	for range 3 {
		if err := s.Do(t.Context(), Get("/")); !errors.Is(err, ErrNotSent) && !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
	}
	began := time.Now()
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close of a session that cannot be reached says that it is closed")
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("Close took %s", took)
	}
}

// TestLife: a session lives by requests, and what it made goes with it.
func TestLife(t *testing.T) {
	t.Parallel()
	url := testengine.Shared(t, testengine.ZooKeeper).URL()
	short := func(c *Config) { c.SessionTimeout = 6 * time.Second } // a busy machine may stand still for seconds
	alive, dead, other := open(t, url, short), open(t, url, short), open(t, url, nil)
	if alive.timeout != 6*time.Second {
		t.Errorf("the timeout is %s", alive.timeout)
	}
	for i, s := range []*Session{alive, dead} {
		c := Create(fmt.Sprintf("/life-%d", i), nil, world, Ephemeral)
		if err := s.Do(t.Context(), c); err != nil || c.Err != nil {
			t.Fatal(err, c.Err)
		}
	}
	for began := time.Now(); dead.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the session goes on without anything that keeps it alive")
		}
		if err := alive.Do(t.Context(), Get("/")); err != nil {
			t.Fatal(err)
		}
	}
	late := Get("/life-1")
	if err := dead.Do(t.Context(), late); !errors.Is(err, ErrExpired) || !errors.Is(late.Err, ErrExpired) || !errors.Is(dead.Err(), ErrExpired) {
		t.Errorf("a request in a session that is over: %v, %v; %v", err, late.Err, dead.Err())
	}
	first, second := Get("/life-0"), Get("/life-1")
	if err := other.Do(t.Context(), Sync("/"), first, second); err != nil || first.Err != nil || !errors.Is(second.Err, ErrNoNode) {
		t.Errorf("%v; of the living: %v, of the dead: %v", err, first.Err, second.Err)
	}
	if err := dead.Close(t.Context()); err != nil {
		t.Errorf("Close of an expired session: %v", err)
	}
	if err := alive.Close(t.Context()); err != nil {
		t.Error(err)
	}
	gone := Get("/life-0")
	if err := other.Do(t.Context(), gone); err != nil || !errors.Is(gone.Err, ErrNoNode) {
		t.Errorf("after Close: %v, %v", err, gone.Err)
	}
	if err := alive.Do(t.Context(), Get("/")); !errors.Is(err, ErrClosed) {
		t.Errorf("a request after Close: %v", err)
	}
}
