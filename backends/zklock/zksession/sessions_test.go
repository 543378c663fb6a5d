package zksession

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// lease opens the sessions of a lease that live as long as the test.
func lease(t *testing.T, url string, ttl time.Duration) *Sessions {
	t.Helper()
	all, err := OpenSessions(t.Context(), Config{
		Addrs: strings.Split(strings.TrimPrefix(url, "zk://"), ","), Timeout: 10 * time.Second, TTL: ttl, Tick: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = all.Close(ctx)
	})
	return all
}

func nothing(ctx context.Context) error { return ctx.Err() }

// TestRoomsAreBounded: many who need room at a time get it in as few sessions as it
// takes; there is an end to it, and what is left can be used again.
func TestRoomsAreBounded(t *testing.T) {
	t.Parallel()
	all := lease(t, testengine.Shared(t, testengine.ZooKeeper).URL(), 20*time.Second)
	half := strings.Repeat("x", MaxPaths/2-100)
	var rooms []*Room
	var mu sync.Mutex
	var tasks sync.WaitGroup
	for range 2*maxSessions - 1 { // a part of the first is kept
		tasks.Go(func() {
			r, err := all.Room(t.Context(), half)
			if err != nil {
				t.Errorf("Room: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			rooms = append(rooms, r)
		})
	}
	tasks.Wait()
	in := make(map[*Session]int)
	for _, r := range rooms {
		in[r.Session()]++
	}
	if len(in) != maxSessions {
		t.Errorf("%d rooms are in %d sessions, want %d", len(rooms), len(in), maxSessions)
	}
	var limit *lock.LimitError
	if _, err := all.Room(t.Context(), half); !errors.As(err, &limit) || limit.Max != maxSessions*MaxPaths {
		t.Errorf("Room where all is full: got %v, want a LimitError", err)
	}
	left := rooms[3].Session()
	rooms[3].Leave()
	rooms[3].Leave()
	again, err := all.Room(t.Context(), half)
	if err != nil || again.Session() != left {
		t.Errorf("Room after one was left: %v", err)
	}
	if _, err := all.Room(t.Context(), half); !errors.Is(err, lock.ErrLimit) {
		t.Errorf("Room that was left twice is there twice: %v", err)
	}
	if err := all.Beat(t.Context(), nothing); err != nil {
		t.Errorf("Beat: %v", err)
	}
	for _, r := range append(rooms, again) {
		r.Leave()
	}
	for range maxIdle + 1 {
		if err := all.Beat(t.Context(), nothing); err != nil {
			t.Errorf("Beat: %v", err)
		}
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.members) != 1 {
		t.Errorf("%d sessions are kept though nothing is in them", len(all.members)-1)
	}
}

// TestSessionsEndTogether: the end of a session with nodes is the end of the lease,
// that of one without is not.
func TestSessionsEndTogether(t *testing.T) {
	t.Parallel()
	all := lease(t, testengine.Shared(t, testengine.ZooKeeper).URL(), 4*time.Second) // a busy machine may stand still for seconds
	most := strings.Repeat("x", MaxPaths-2*spare)
	if _, err := all.Room(t.Context(), most); err != nil {
		t.Fatal(err)
	}
	// expire lets all sessions but the first expire.
	expire := func(s *Session) {
		t.Helper()
		for end := time.Now().Add(patience); s.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if err := all.First().Beat(t.Context(), nothing); err != nil {
				t.Fatalf("Beat: %v", err)
			}
			if time.Now().After(end) {
				t.Fatal("a session goes on without beats")
			}
		}
	}
	empty, err := all.Room(t.Context(), most)
	if err != nil {
		t.Fatal(err)
	}
	empty.Leave()
	expire(empty.Session())
	if err := all.Beat(t.Context(), nothing); err != nil || all.Err() != nil {
		t.Errorf("after the end of a session that nothing hung on: %v, %v", err, all.Err())
	}
	full, err := all.Room(t.Context(), most)
	if err != nil {
		t.Fatal(err)
	}
	expire(full.Session())
	select {
	case <-all.Done():
	case <-time.After(patience):
		t.Fatal("the lease goes on though a session with nodes is over")
	}
	if err := all.Beat(t.Context(), nothing); !errors.Is(err, ErrExpired) {
		t.Errorf("Beat: got %v, want ErrExpired", err)
	}
	if _, err := all.Room(t.Context(), "/x"); !errors.Is(err, ErrExpired) {
		t.Errorf("Room: got %v, want ErrExpired", err)
	}
	if err := all.Close(t.Context()); err != nil && !errors.Is(err, ErrLost) { // the first one may be over, too
		t.Errorf("Close: %v", err)
	}
}

// TestBeatWhileItIsClosed: a heartbeat that comes when the lease is being closed finds it over.
func TestBeatWhileItIsClosed(t *testing.T) {
	t.Parallel()
	all := lease(t, testengine.Shared(t, testengine.ZooKeeper).URL(), 20*time.Second)
	if err := all.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := all.Beat(t.Context(), nothing); !errors.Is(err, ErrClosed) {
		t.Errorf("Beat: got %v, want ErrClosed", err)
	}
}

// TestRefusedSessionIsClosed: a server that allows less than a lease needs is not left
// with the session that it has made.
func TestRefusedSessionIsClosed(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.ZooKeeper)
	_, err := OpenSessions(t.Context(), Config{Addrs: []string{strings.TrimPrefix(s.URL(), "zk://")}, Timeout: 5 * time.Second, TTL: 10 * time.Minute})
	if err == nil || !strings.Contains(err.Error(), "set maxSessionTimeout=900000 in its configuration, or a TTL of at most 40s") {
		t.Errorf("got %v, want what to do about it", err)
	}
	watch := open(t, s.URL(), nil)
	if made := must(t, watch, Get("/zookeeper")); made.Err != nil {
		t.Fatal(made.Err)
	}
	one := regexp.MustCompile(`Session Sets \(\d+\)/\(1\)`)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // in 40 s the other one would expire by itself
		dump := say(t, strings.TrimPrefix(s.URL(), "zk://"), "dump")
		if one.MatchString(dump) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the server has more sessions than one:\n%s", dump)
		}
	}
}

// say is a server's answer to a word of four letters.
func say(t *testing.T, addr, word string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, word)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
