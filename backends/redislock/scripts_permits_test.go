package redislock

import "testing"

// Also among a thousand permits a forced one is over when its grace is, though nobody takes it out:
// a waiter is told when that is, and gets its slot then; so does a try (law 2).
func TestScriptsForcedAmongManyPermits(t *testing.T) {
	const many, mode = 1000, "P1000"
	s := newStill(t)
	for _, lease := range []string{"aa", "bb"} {
		s.open(lease)
	}
	ids := s.crowd(many, "aa", mode, "w")
	s.counts(many, 0)
	revoke := func(i int, grace int64) {
		t.Helper()
		s.force("aa", ids[i], grace)
		s.want(s.ack("aa", ids[i], grace), "1")
	}
	revoke(7, 3*second)
	revoke(700, 5*second)
	revoke(70, 6*second)
	revoke(77, 6*second)
	s.force("aa", ids[8], second) // nobody acknowledges it
	waits := func(at int64, id, want string) {
		t.Helper()
		s.at(at)
		s.want(s.acquire("bb", id, mode), want)
	}
	waits(2*second, "1", "[WAIT 1000]")
	waits(3*second-1, "1", "[WAIT 1]")
	waits(3*second, "1", "T+3s+7")
	waits(3*second, "2", "[WAIT 2000]")
	s.want(s.release("aa", ids[700]), "1") // before its grace is over
	waits(3*second, "2", "T+3s+2+700")
	waits(5*second, "3", "[WAIT 1000]")
	s.at(6 * second)
	s.want(s.try("bb", "4", mode), "T+6s+1+77") // 3 stands before it, and has slot 70
	waits(6*second, "3", "T+6s+70")
	waits(6*second, "5", "[WAIT 4000]") // the others last as long as their lease
	s.has("queue", "5=T+6s+2")
	s.counts(many, 1)
}
