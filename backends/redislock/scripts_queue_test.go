package redislock

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A number is above every one before, whether the clock stands still, is set back or goes on,
// and whether the common case grants or another one (promise 2).
func TestScriptsFencesGrow(t *testing.T) {
	s := newStill(t)
	s.at(100 * second)
	s.open("aa")
	s.want(s.acquire("aa", "1", "X"), "T+100s")
	s.release("aa", "1")
	s.want(s.acquire("aa", "2", "X"), "T+100s+1") // in the same microsecond
	s.release("aa", "2")
	s.at(95 * second) // set back
	s.want(s.acquire("aa", "3", "S"), "T+100s+2")
	s.has("lock", "h3=S T+100s+2 T+95s aa 0 - w, m=S")
	s.want(s.acquire("aa", "4", "S"), "T+100s+3")
	s.has("last", "T+100s+3")
	s.at(100*second + 3)
	s.want(s.acquire("aa", "5", "S"), "T+100s+4")
	s.at(100*second + 5)
	s.want(s.acquire("aa", "6", "S"), "T+100s+5")
	s.has("last", "T+100s+5")
	s.at(100*second + 9)
	s.want(s.acquire("aa", "7", "X"), "[WAIT 10000]")
	s.has("queue", "7=T+100s+9") // a ticket is a number, too
	for _, id := range []string{"3", "4", "5", "6"} {
		s.release("aa", id)
	}
	s.hears("aa: g 7 T+100s+10")
	s.has("last", "T+100s+10")
	s.release("aa", "7")
	s.at(101 * second)
	s.want(s.acquire("aa", "8", "X"), "T+101s")
	s.has("last", "T+101s")
}

// Without the last number, which somebody has deleted, the time is one.
func TestScriptsFencesWithoutTheLast(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "S")
	s.ok(s.b.client.Del(t.Context(), s.k.last).Err())
	s.at(1)
	s.want(s.acquire("aa", "2", "S"), "T+1")
	s.has("last", "T+1")
	s.release("aa", "1")
	s.release("aa", "2")
	s.ok(s.b.client.Del(t.Context(), s.k.last).Err())
	s.at(2)
	s.want(s.acquire("aa", "3", "X"), "T+2")
	s.has("last", "T+2")
}

// A retry finds its own grant, and its own place in the queue; it never passes others
// (promises 7 and 9).
func TestScriptsRetriesChangeNothing(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.want(s.acquire("aa", "1", "X"), "T")
	s.want(s.acquire("aa", "1", "X"), "T")
	s.want(s.try("aa", "1", "X"), "T")
	s.has("lock", "h1=X T T aa 0 - w, m=X")
	s.has("mine:aa", "r|1=0")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 10000]")
	s.at(second)
	s.want(s.acquire("bb", "2", "X"), "[WAIT 9000]")
	s.want(s.acquire("bb", "3", "S"), "[WAIT 9000]")
	s.want(s.downgrade("aa", "1"), "1")
	s.want(s.acquire("bb", "3", "S"), "[WAIT 9000]") // the writer stands before it
	s.want(s.acquire("bb", "4", "S"), "[WAIT 9000]")
	s.has("queue", "2=T+1, 3=T+1s, 4=T+1s+1")
	s.has("waiters", "2=X 0 T bb 0 - w, 3=S 0 T+1s bb 0 - w, 4=S 0 T+1s bb 0 - w")
	s.has("mine:bb", "r|2=0, r|3=0, r|4=0")
	s.has("lock", "h1=S T T aa 0 - w, m=S")
	s.hears()
}

// Who only tries is told who is in the way, as people will read it, and leaves nothing.
func TestScriptsTry(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "S")
	s.at(1)
	s.want(s.try("bb", "3", "X"), "[HELD T+1 1 S T T aa 0 - w 2 S T+1 T aa 0 - w]")
	s.has("mine:bb", "")
	s.has("queue", "")
	s.want(s.acquire("bb", "4", "X"), "[WAIT 10000]")
	s.want(s.try("bb", "5", "S"), "[HELD T+1 1 S T T aa 0 - w 2 S T+1 T aa 0 - w]") // the writer stands before it
	s.has("queue", "4=T+2")
}

// A request for what only dead leases hold is granted at once; where one lives, it says when the
// first of them could end.
func TestScriptsAcquirePastTheDead(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "S")
	s.at(1)
	s.open("bb")
	s.acquire("bb", "3", "S")
	s.at(ttl - 1)
	s.open("cc")
	s.want(s.acquire("cc", "4", "X"), "[WAIT 1]") // rounded up
	s.release("cc", "4")
	s.at(ttl)
	s.want(s.acquire("cc", "4", "X"), "[WAIT 1]")
	s.has("lock", "h3=S T+2 T+1 bb 0 - w, m=S")
	s.want(s.acquire("cc", "5", "S"), "[WAIT 1]")
	s.at(ttl + 1)
	s.open("dd")
	s.want(s.acquire("dd", "6", "X"), "[WAIT 0]") // those before it have the lock now
	s.hears("cc: g 4 T+10s+2")
	s.has("lock", "h4=X T+10s+2 T+10s+1 cc 0 - w, m=X")
	s.has("queue", "5=T+10s+1, 6=T+10s+3")
	s.at(2*ttl - 1)
	s.want(s.try("dd", "7", "X"), "[HELD T+19s+999999 6 X T+19s+999999 T+19s+999999 dd 0 - w]")
	s.hears("dd: g 6 T+19s+999999") // 5 was of a dead lease, too
}

// A waiter that asks again when the holder is dead is granted, as if it had just been told.
func TestScriptsWaiterAsksPastTheDead(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "X")
	s.at(1)
	s.open("bb")
	s.acquire("bb", "2", "X")
	s.acquire("bb", "3", "X")
	s.at(ttl)
	s.want(s.acquire("bb", "2", "X"), "T+10s")
	s.has("lock", "h2=X T+10s T+10s bb 0 - w, m=X")
	s.has("queue", "3=T+2")
	s.has("waiters", "3=X 0 T+1 bb 0 - w")
	s.open("cc")
	s.at(ttl + 1)
	s.want(s.acquire("cc", "4", "X"), "T+10s+1") // 3 is of a dead lease, too
	s.has("queue", "")
}

// The head of the queue is next: a writer alone, readers together; waiters of dead leases are
// skipped (promise 7).
func TestScriptsHandOn(t *testing.T) {
	s := newStill(t)
	s.open("dead")
	s.at(1)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.acquire("dead", "2", "X")
	s.acquire("bb", "3", "S")
	s.acquire("dead", "4", "S")
	s.acquire("aa", "5", "S")
	s.acquire("bb", "6", "X")
	s.acquire("aa", "7", "S")
	s.at(ttl)
	s.want(s.release("aa", "1"), "1")
	s.hears("bb: g 3 T+10s", "aa: g 5 T+10s+1")
	s.has("lock", "h3=S T+10s T+10s bb 0 - w, h5=S T+10s+1 T+10s aa 0 - w, m=S")
	s.has("queue", "6=T+6, 7=T+7")
	s.has("waiters", "6=X 0 T+1 bb 0 - w, 7=S 0 T+1 aa 0 - w")
	s.want(s.release("bb", "3"), "1")
	s.hears()
	s.want(s.release("aa", "5"), "1")
	s.hears("bb: g 6 T+10s+2")
	s.want(s.release("bb", "6"), "1")
	s.hears("aa: g 7 T+10s+3")
	s.has("lock", "h7=S T+10s+3 T+10s aa 0 - w, m=S")
	s.want(s.release("aa", "7"), "1")
	s.free("aa", "bb")
}

// A release among readers hands on where those who are left are dead.
func TestScriptsReleaseBesideDeadReaders(t *testing.T) {
	s := newStill(t)
	s.open("dead")
	s.acquire("dead", "1", "S")
	s.at(1)
	s.open("aa")
	s.acquire("aa", "2", "S")
	s.acquire("aa", "3", "S")
	s.acquire("aa", "4", "X")
	s.want(s.release("aa", "2"), "1")
	s.hears()
	s.at(ttl)
	s.want(s.release("aa", "3"), "1")
	s.hears("aa: g 4 T+10s")
	s.has("lock", "h4=X T+10s T+10s aa 0 - w, m=X")
}

// A wait that ends is taken out of the queue: it learns where it stood and who holds the lock,
// and those behind it may be due.
func TestScriptsWaitEnds(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "S")
	s.acquire("bb", "2", "X")
	s.acquire("bb", "3", "S")
	s.acquire("bb", "4", "X")
	s.at(1)
	s.want(s.release("bb", "4"), "[CANCELLED 3 0 T+1 1 S T T aa 0 - w]")
	s.hears()
	s.want(s.release("bb", "2"), "[CANCELLED 1 0 T+1 1 S T T aa 0 - w 3 S T+4 T+1 bb 0 - w]")
	s.hears("bb: g 3 T+4")
	s.has("queue", "")
	s.has("waiters", "")
	s.has("mine:bb", "r|3=0")
	s.want(s.release("bb", "2"), "0")
}

// Release ends what the lease has, and nobody else's (promise 10); late and second ones change
// nothing.
func TestScriptsReleaseOnlyOwn(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.want(s.release("aa", "1"), "0")
	s.acquire("aa", "1", "X")
	s.want(s.release("bb", "1"), "0")
	s.want(s.release("aa", "2"), "0")
	s.want(s.downgrade("bb", "1"), "0")
	s.want(s.downgrade("aa", "2"), "0")
	s.want(s.describe("bb", "1", "me"), "0")
	s.want(s.describe("aa", "2", "me"), "0")
	s.has("lock", "h1=X T T aa 0 - w, m=X")
	s.want(s.describe("aa", "1", "me"), "1")
	s.has("lock", "h1=X T T aa 0 - me, m=X")
	s.want(s.release("aa", "1"), "1")
	s.want(s.release("aa", "1"), "0")
	s.free("aa", "bb")

	s.acquire("aa", "3", "S")
	s.acquire("bb", "4", "S")
	s.want(s.release("bb", "3"), "0")
	s.want(s.release("aa", "3"), "1") // beside another reader
	s.has("lock", "h4=S T+2 T bb 0 - w, m=S")
	s.acquire("aa", "5", "X")
	s.want(s.release("bb", "4"), "1") // a lone holder with a waiter
	s.hears("aa: g 5 T+4")
	s.want(s.release("aa", "5"), "1")
	s.free("aa", "bb")
}

// A writer that becomes a reader lets the readers in that stand behind it.
func TestScriptsDowngrade(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.acquire("bb", "2", "S")
	s.acquire("bb", "3", "X")
	s.want(s.downgrade("aa", "1"), "1")
	s.hears("bb: g 2 T+3")
	s.has("lock", "h1=S T T aa 0 - w, h2=S T+3 T bb 0 - w, m=S")
	s.want(s.downgrade("aa", "1"), "1")
	s.hears()
	s.force("aa", "1", 5*second)
	s.want(s.ack("aa", "1", 5*second), "1")
	s.hears("aa: r 1 5000000 r")
	s.at(5*second - 1)
	s.want(s.downgrade("aa", "1"), "1")
	s.at(5 * second)
	s.want(s.downgrade("aa", "1"), "0") // its forced release is over
}

// A request that was given up is not carried out when a copy of it arrives later, for as long as
// was said (promise 9).
func TestScriptsGivenUpStaysSo(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.want(s.giveUp("aa", "1", 3*second), "0")
	s.has("gone", "1=T+3s")
	s.want(s.acquire("aa", "1", "X"), "[GONE]")
	s.free("aa")
	s.want(s.acquire("aa", "2", "X"), "T")
	s.want(s.giveUp("aa", "2", 4*second), "1")
	s.has("gone", "1=T+3s, 2=T+4s")
	s.at(3*second - 1)
	s.want(s.acquire("aa", "1", "X"), "[GONE]")
	s.at(3 * second)
	s.want(s.acquire("aa", "1", "X"), "T+3s")
	s.has("gone", "2=T+4s")
	s.want(s.acquire("aa", "2", "X"), "[GONE]")
	s.want(s.release("aa", "1"), "1")
	s.at(4 * second)
	s.want(s.acquire("aa", "3", "X"), "T+4s")
	s.has("gone", "")
	s.want(s.acquire("aa", "2", "X"), "[WAIT 6000]")
	s.want(s.giveUp("aa", "2", 4*second), "[CANCELLED 1 0 T+4s 3 X T+4s T+4s aa 0 - w]")
	s.has("gone", "2=T+8s")
	s.want(s.acquire("aa", "2", "X"), "[GONE]")
}

// Many that were given up are forgotten a few at a time; no old one keeps anybody out.
func TestScriptsManyGivenUp(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	for i := range 20 {
		s.giveUp("aa", fmt.Sprint(i), second+int64(i))
	}
	s.at(second + 19)
	s.want(s.acquire("aa", "19", "X"), "T+1s+19")
	if left := s.b.client.ZCard(t.Context(), s.k.gone+resource).Val(); left == 0 || left > 15 {
		t.Errorf("%d are remembered", left)
	}
}

// What was given up is kept for as long as the longest of it needs.
func TestScriptsKeepWhatWasGivenUp(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	about := func(want time.Duration) {
		t.Helper()
		if left := s.life(s.k.gone + resource); left > want || left < want-time.Minute {
			t.Errorf("kept for %s, want %s", left, want)
		}
	}
	s.giveUp("aa", "1", 3600*100*second)
	about(100 * time.Hour)
	s.giveUp("aa", "2", 3600*10*second)
	about(100 * time.Hour)
	s.giveUp("aa", "3", 3600*200*second)
	about(200 * time.Hour)
}

// Those behind whom somebody begins to wait are told, where they stand there for several apps:
// the last one in the queue, or else the holders.
func TestScriptsTellWhoIsStoodBehind(t *testing.T) {
	const several = "w\x00c"
	s := newStill(t)
	for _, l := range []string{"aa", "bb", "cc"} {
		s.open(l)
	}
	ask := func(lease, id, mode, who string) {
		s.t.Helper()
		reply := s.ask(request{lease: lease, id: id, mode: mode, who: who})
		if mode == "X" && !strings.HasPrefix(reply, "[WAIT") {
			t.Errorf("%s: %s", id, reply)
		}
	}
	ask("aa", "h1", "S", several)
	ask("bb", "h2", "S", "w")
	ask("bb", "h3", "S", several)
	ask("cc", "h4", "S", several)
	ask("cc", "5", "X", several)
	s.hearsAll("aa: c h1", "bb: c h3")
	ask("aa", "6", "X", several)
	s.hears("cc: c 5")
	ask("bb", "7", "X", several)
	s.hears("aa: c 6")
	ask("bb", "8", "X", "w") // behind its own
	s.hears()
	ask("aa", "9", "X", several) // behind one that is alone
	s.hears()
	ask("aa", "9", "X", several)
	s.hears()
}
