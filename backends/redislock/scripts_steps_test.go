package redislock

import (
	"strings"
	"testing"
)

// goOn hands on what a script has left.
func (s *still) goOn() {
	s.t.Helper()
	for range 20 {
		reply := s.advance()
		if reply == "0" {
			return
		}
		s.want(reply, "1")
	}
	s.t.Error("there is always more")
}

// counts compares how many hold the lock and wait for it.
func (s *still) counts(holders, waiters int64) {
	s.t.Helper()
	if h, w := s.held(); h != holders || w != waiters {
		s.t.Errorf("%d hold and %d wait, want %d and %d", h, w, holders, waiters)
	}
}

// However many readers are due, a script grants some and says that there is more; the rest is
// granted by those that follow (law 10).
func TestScriptsGrantManyInSteps(t *testing.T) {
	const many = 40
	for _, c := range []struct {
		name string
		free func(s *still)
		stay int64 // of those who were there
	}{
		{"a release", func(s *still) { s.want(s.release("bb", "1"), "2") }, 0},
		{"a release that may be a copy", func(s *still) { s.want(s.giveUp("bb", "1", remembered), "2") }, 0},
		{"a downgrade", func(s *still) { s.want(s.downgrade("bb", "1"), "2") }, 1},
		{"a forced release", func(s *still) { s.want(s.force("bb", "1", 0), "0") }, 0},
		{"the end of a lease", func(s *still) {
			s.at(ttl)
			s.want(s.reap("bb", "1"), "2")
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStill(t)
			s.open("bb")
			s.at(1)
			s.open("aa")
			s.acquire("bb", "1", "X")
			s.crowd(many, "aa", "S", "w")
			c.free(s)
			if h, w := s.held(); h == c.stay || w == 0 || h+w != many+c.stay {
				t.Errorf("%d hold and %d wait, want a part of them", h, w)
			}
			s.goOn()
			s.counts(many+c.stay, 0)
		})
	}
	t.Run("the end of a wait", func(t *testing.T) {
		s := newStill(t)
		s.open("aa")
		s.acquire("aa", "1", "S")
		s.acquire("aa", "2", "X")
		s.crowd(many, "aa", "S", "w")
		if reply := s.release("aa", "2"); !strings.HasPrefix(reply, "[CANCELLED 1 1 T 1 S T T aa 0 - w aa-") {
			t.Error(reply)
		}
		s.goOn()
		s.counts(many+1, 0)
	})
	t.Run("a waiter that asks again", func(t *testing.T) {
		s := newStill(t)
		s.open("bb")
		s.at(1)
		s.open("aa")
		s.acquire("bb", "1", "X")
		ids := s.crowd(many, "aa", "S", "w")
		s.at(ttl)
		s.want(s.acquire("aa", ids[0], "S"), "[GRANTED T+10s]")
		s.want(s.acquire("aa", ids[0], "S"), "T+10s")
		s.want(s.acquire("aa", ids[many-1], "S"), "[MORE]")
		s.want(s.acquire("aa", ids[many-1], "S"), "T+10s+39")
		s.counts(many, 0)
	})
}

// Dead waiters are passed in steps. Who asks meanwhile is told to ask again, and is not held up
// by them.
func TestScriptsPassManyDeadWaiters(t *testing.T) {
	for _, try := range []bool{true, false} {
		s := newStill(t)
		s.open("dead")
		s.at(1)
		s.open("aa")
		s.acquire("aa", "1", "X")
		s.crowd(80, "dead", "X", "w")
		s.at(ttl)
		s.want(s.release("aa", "1"), "2")
		q := request{lease: "aa", id: "2", mode: "X", try: try}
		s.want(s.ask(q), "[MORE]")
		if reply := s.ask(q); !strings.HasPrefix(reply, "T+10s") {
			t.Error(reply)
		}
		s.counts(1, 0)
	}
}

// long is what makes Redis keep a hash in a table, and scan it in parts.
var long = strings.Repeat("w", 80)

// Dead readers are passed in steps.
func TestScriptsPassManyDeadReaders(t *testing.T) {
	s := newStill(t)
	s.open("dead")
	s.crowd(3000, "dead", "S", long) // too many to be in the first places of the table
	s.at(1)
	s.open("aa")
	s.at(ttl)
	s.want(s.acquire("aa", "1", "X"), "[MORE]")
	before, _ := s.held()
	for range 100 {
		reply := s.acquire("aa", "1", "X")
		now, _ := s.held()
		if before-now > 48 {
			t.Errorf("%d readers are looked at in one step", before-now)
		}
		if before = now; reply != "[MORE]" {
			s.want(reply, "T+10s+1")
			s.counts(1, 0)
			return
		}
	}
	t.Error("there is always more")
}

// A release beside many dead readers leaves the rest to those that follow.
func TestScriptsReleaseBesideManyDeadReaders(t *testing.T) {
	s := newStill(t)
	s.open("dead")
	s.crowd(600, "dead", "S", long)
	s.at(1)
	s.open("aa")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "X")
	s.at(ttl)
	s.want(s.release("aa", "1"), "2")
	s.goOn()
	s.hears("aa: g 2 T+10s")
	s.counts(1, 0)
}
