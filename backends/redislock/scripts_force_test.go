package redislock

import (
	"fmt"
	"testing"
)

// A forced release is told to the holder, by a push and by its heartbeats, until it acknowledges;
// its grace counts from then, and the hold is over in the microsecond in which it ends (law 2).
func TestScriptsForceWithGrace(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.acquire("bb", "2", "X")
	s.want(s.force("", "1", 3*second), "[aa]") // the store says whose it is
	s.hears()
	s.want(s.force("aa", "1", 3*second), "10000")
	s.hears("aa: r 1 3000000 r")
	s.has("lock", "f=1, h1=X T T aa 0 3000000 w, m=X")
	s.has("revoked:aa", "r|1=3000000")
	s.at(second)
	s.want(s.force("aa", "1", 3*second), "9000") // until the lease is over, for nobody has acknowledged
	s.want(s.force("aa", "1", 4*second), "9000")
	s.hears()
	s.has("revoked:aa", "r|1=3000000")
	s.want(s.ack("aa", "1", 3*second), "1")
	s.has("lock", "f=1, h1=X T T aa T+4s 3000000 w, m=X")
	s.has("revoked:aa", "")
	s.want(s.force("aa", "1", 3*second), "3000")
	s.hears()
	s.at(2 * second)
	s.want(s.acquire("bb", "2", "X"), "[WAIT 2000]")
	s.want(s.acquire("aa", "1", "X"), "T")
	s.want(s.describe("aa", "1", "me"), "1")
	s.at(4*second - 1)
	s.want(s.force("aa", "1", 3*second), "1") // less than a millisecond
	s.want(s.acquire("aa", "1", "X"), "T")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 1]")
	s.has("lock", "f=1, h1=X T T aa T+4s 3000000 me, m=X")
	s.at(4 * second)
	s.want(s.force("aa", "1", 3*second), "0")
	s.hears("bb: g 2 T+4s")
	s.has("lock", "h2=X T+4s T+4s bb 0 - w, m=X")
	s.has("mine:aa", "r|1=0") // its release finds it there
	s.want(s.force("aa", "1", 3*second), "-1")
	s.want(s.release("aa", "1"), "0")
	s.empty("aa")
}

// When its grace is over, a forced hold is in nobody's way, also where nobody takes it out: not
// in a waiter's, who asks again, and not for the one who had it.
func TestScriptsForcedIsOver(t *testing.T) {
	forced := func() *still {
		s := newStill(t)
		s.open("aa")
		s.open("bb")
		s.acquire("aa", "1", "X")
		s.force("aa", "1", 3*second)
		s.want(s.ack("aa", "1", 3*second), "1")
		return s
	}
	s := forced()
	s.acquire("bb", "2", "S")
	s.at(3*second - 1)
	s.want(s.acquire("bb", "2", "S"), "[WAIT 1]")
	s.at(3 * second)
	s.want(s.acquire("bb", "2", "S"), "T+3s")
	s.has("lock", "h2=S T+3s T+3s bb 0 - w, m=S")
	s.want(s.acquire("aa", "1", "X"), "[WAIT 7000]") // it stands behind the other
	s.want(s.release("aa", "1"), "[CANCELLED 1 0 T+3s 2 S T+3s T+3s bb 0 - w]")
	s.want(s.release("bb", "2"), "1")
	s.free("aa", "bb")

	s = forced()
	s.at(3 * second)
	s.acquire("bb", "2", "X")
	s.has("lock", "h2=X T+3s T+3s bb 0 - w, m=X")
	s.has("mine:aa", "r|1=0")
	s.want(s.release("aa", "1"), "0") // which looks like the release of the only holder
	s.has("lock", "h2=X T+3s T+3s bb 0 - w, m=X")
	s.has("mine:bb", "r|2=0")

	s = forced()
	s.acquire("bb", "2", "X")
	s.at(3*second - 1)
	s.want(s.acquire("aa", "1", "X"), "T")
	s.at(3 * second)
	s.want(s.acquire("aa", "1", "X"), "[GONE]")
	s.hears("aa: r 1 3000000 r", "bb: g 2 T+3s")
	s.has("lock", "h2=X T+3s T+3s bb 0 - w, m=X")
	s.empty("aa")

	s = forced()
	s.at(3 * second)
	s.want(s.try("bb", "2", "X"), "T+3s")

	s = forced()
	s.at(3 * second)
	s.want(s.force("aa", "1", second), "0")
	s.want(s.release("aa", "1"), "0")
	s.free("aa")

	s = forced()
	s.at(3 * second)
	s.want(s.force("aa", "1", second), "0")
	s.at(ttl)
	s.want(s.release("aa", "1"), "-1")
	s.free("aa")

	s = forced()
	s.force("aa", "1", second) // nobody acknowledges that
	s.has("revoked:aa", "r|1=1000000")
	s.at(3 * second)
	s.want(s.force("aa", "1", second), "0")
	s.want(s.beat("aa"), "[f00d 0 T 1 [] ]") // its release is still to come, and nothing to be told
}

// A release of a hold that is forced ends the lock with all that was noted of the force.
func TestScriptsReleaseOfAForced(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.force("aa", "1", 3*second)
	s.want(s.release("aa", "1"), "1")
	s.free("aa")
	s.acquire("aa", "2", "S")
	s.acquire("aa", "3", "S")
	s.acquire("bb", "4", "X")
	s.force("aa", "2", 3*second)
	s.has("revoked:aa", "r|2=3000000")
	s.want(s.release("aa", "3"), "1")
	s.has("revoked:aa", "r|2=3000000")
	s.want(s.release("aa", "2"), "1")
	s.hears("aa: r 1 3000000 r", "aa: r 2 3000000 r", "bb: g 4 T+4")
	s.empty("aa")
	s.want(s.release("bb", "4"), "1")
	s.free("aa", "bb")
}

// A shorter grace is told and acknowledged again; the end comes sooner, never later. Another
// grace than the one that is known is still to be acknowledged.
func TestScriptsForceAgain(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "S")
	s.force("aa", "1", 8*second)
	s.want(s.ack("aa", "1", 8*second), "1")
	s.hears("aa: r 1 8000000 r")
	s.at(second)
	s.want(s.force("aa", "1", 4*second), "7000")
	s.hears("aa: r 1 4000000 r")
	s.has("revoked:aa", "r|1=4000000")
	s.want(s.ack("aa", "1", 8*second), "1") // of the first one, late
	s.has("revoked:aa", "r|1=4000000")
	s.has("lock", "f=1, h1=S T T aa T+8s 4000000 w, h2=S T+1 T aa 0 - w, m=S")
	s.want(s.ack("aa", "1", 4*second), "1")
	s.has("revoked:aa", "")
	s.has("lock", "f=1, h1=S T T aa T+5s 4000000 w, h2=S T+1 T aa 0 - w, m=S")
	s.at(2 * second)
	s.want(s.ack("aa", "1", 4*second), "1")
	s.has("lock", "f=1, h1=S T T aa T+5s 4000000 w, h2=S T+1 T aa 0 - w, m=S")

	s.force("aa", "2", 4*second)
	s.want(s.ack("aa", "2", 4*second-1), "1") // what was asked for is longer
	s.has("revoked:aa", "")
	s.has("lock", "f=1, h1=S T T aa T+5s 4000000 w, h2=S T+1 T aa T+5s+999999 4000000 w, m=S")
	s.want(s.ack("aa", "3", second), "1") // of what is not there
	s.want(s.release("aa", "1"), "1")
	s.want(s.release("aa", "2"), "1")
	s.free("aa")
}

// With grace 0 the hold is gone at once and handed on; the heartbeats name it until that is
// acknowledged.
func TestScriptsForceAtOnce(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.acquire("bb", "2", "S")
	s.want(s.force("bb", "1", 0), "[aa]")
	s.want(s.force("aa", "1", 0), "0")
	s.hears("bb: g 2 T+2", "aa: r 1 0 r")
	s.has("lock", "h2=S T+2 T bb 0 - w, m=S")
	s.has("mine:aa", "")
	s.has("revoked:aa", "r|1=0")
	s.want(s.beat("aa"), "[f00d 0 T 0 [r|1 0] ]")
	s.want(s.force("aa", "1", 0), "-1")
	s.want(s.ack("aa", "1", 0), "1")
	s.has("revoked:aa", "")
	s.has("lock", "h2=S T+2 T bb 0 - w, m=S")

	s.force("bb", "2", 3*second) // and then at once
	s.want(s.force("bb", "2", 0), "0")
	s.has("lock", "")
	s.has("revoked:bb", "r|2=0")
	s.want(s.release("bb", "2"), "0")
	s.free("aa", "bb")
}

// A forced release of a dead lease's hold takes it out, and nobody needs to wait.
func TestScriptsForceTheDead(t *testing.T) {
	s := newStill(t)
	s.want(s.force("aa", "1", 0), "-1")
	s.open("aa")
	s.at(1)
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.acquire("bb", "2", "X")
	s.acquire("aa", "3", "X")
	s.at(ttl)
	s.want(s.force("bb", "3", second), "[aa]")
	s.want(s.force("aa", "3", second), "-1")
	s.hears()
	s.has("queue", "2=T+2")
	s.has("mine:aa", "r|1=0")
	s.want(s.force("aa", "1", second), "-1")
	s.hears("bb: g 2 T+10s")
	s.has("lock", "h2=X T+10s T+10s bb 0 - w, m=X")
	s.empty("aa")
}

// A waiter that is forced out is told so, leaves nothing, and its request is not carried out
// when a copy of it comes; those behind it may be due.
func TestScriptsForceAWaiter(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "S")
	s.acquire("bb", "2", "X")
	s.acquire("aa", "3", "S")
	s.want(s.force("", "2", second), "[bb]")
	s.want(s.force("bb", "2", second), "0")
	s.hears("aa: g 3 T+3", "bb: x 2")
	s.has("queue", "")
	s.has("waiters", "")
	s.has("gone", "2=T+1000s")
	s.empty("bb")
	s.want(s.acquire("bb", "2", "X"), "[GONE]")
	s.want(s.force("bb", "2", second), "-1")
}

// Get sees who holds and who waits, a part at a time, and nobody who is over: not by a
// microsecond, be it the lease or a forced release.
func TestScriptsStatus(t *testing.T) {
	s := newStill(t)
	s.want(s.status("0", "-inf"), "[T  []  []]")
	s.open("aa")
	s.at(1)
	s.open("bb")
	s.acquire("aa", "1", "S")
	s.acquire("bb", "2", "S")
	s.acquire("bb", "3", "S")
	s.acquire("aa", "4", "X")
	s.acquire("bb", "5", "X")
	s.force("bb", "3", 3*second)
	s.ack("bb", "3", 3*second)
	const one, two, three = "1 S T+1 T+1 aa 0 - w", "2 S T+2 T+1 bb 0 - w", "3 S T+3 T+1 bb T+3s+1 3000000 w"
	const four, five = "4 X 0 T+1 aa 0 - w", "5 X 0 T+1 bb 0 - w"
	s.at(3 * second)
	s.want(s.status("0", "-inf"), "[T+3s  ["+one+" "+two+" "+three+"]  ["+four+" "+five+"]]")
	s.want(s.status("", "-inf"), "[T+3s  []  ["+four+" "+five+"]]")
	s.want(s.status("0", ""), "[T+3s  ["+one+" "+two+" "+three+"]  []]")
	s.want(s.status("", fmt.Sprintf("(%d", epoch+4)), "[T+3s  []  ["+five+"]]")
	s.at(3*second + 1)
	s.want(s.status("0", ""), "[T+3s+1  ["+one+" "+two+"]  []]")
	s.at(ttl - 1)
	s.want(s.status("0", "-inf"), "[T+9s+999999  ["+one+" "+two+"]  ["+four+" "+five+"]]")
	s.at(ttl)
	s.want(s.status("0", "-inf"), "[T+10s  ["+two+"]  ["+five+"]]")
	s.open("bb")
	s.run(scriptDrop, []string{s.k.leases, s.k.mine + "none", s.k.revoked + "none"}, "aa", "")
	s.want(s.status("0", "-inf"), "[T+10s  ["+two+"]  ["+five+"]]") // the lease is not there any more
}

// A crowd is seen in parts, each of them once.
func TestScriptsStatusOfACrowd(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.crowd(200, "aa", "S", long)
	queue := s.crowd(200, "bb", "X", "w")
	st := newStatus(resource)
	for parts := 1; !st.done(); parts++ {
		if parts > 40 {
			t.Fatal("it does not end")
		}
		reply := replyOf(s.send(scriptStatus, s.of(""), st.args()))
		s.ok(reply.err)
		before := len(st.holders)
		st.add(reply.val)
		if n := len(st.holders) - before; n > 150 {
			t.Errorf("%d holders in one part", n)
		}
	}
	all := st.status()
	if len(all.Holders) != 200 || len(all.Waiters) != len(queue) {
		t.Fatalf("%d hold, %d wait", len(all.Holders), len(all.Waiters))
	}
	for i, w := range all.Waiters {
		s.want(string(w.ID), queue[i])
	}
}
