package redislock

import (
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

func (s *still) detach(lease, id, key, micros string) string {
	s.t.Helper()
	return s.run(scriptDetach, s.k.leaving("r", lock.LeaseID(lease)), resource, lease, id, "0", key, micros)
}

func (s *still) attach(lease, id, key, from string) string {
	s.t.Helper()
	return s.run(scriptAttach, s.k.attaching("r", lock.LeaseID(lease), lock.LeaseID(from)), resource, lease, id, "X", "v", key+":"+from)
}

// handle is a request whose caller has read that the hold ends so many seconds after T.
func (s *still) handle(holder string, end int64, key, micros string) string {
	s.t.Helper()
	return s.run(scriptHandle, s.k.leaving("r", lock.LeaseID(holder)), resource, holder, epoch+end*second, key, micros)
}

// What is detached is of no lease, and found by its key alone; who attaches it has it under another id, and who had it
// is told; its time goes along, in the microsecond too.
func TestScriptsDetach(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 10000]")
	s.want(s.detach("bb", "1", "ee", "3000000"), "0") // not its own
	s.want(s.detach("aa", "1", "ee", "3000000"), "1")
	s.hears("bb: x 2")
	s.has("lock", "dee=1, h1=X T T 0 0 - w|dee|mT+3s, k=1, m=X")
	s.empty("aa")
	s.has("kept ends", "r|1=T+3s")
	s.want(s.detach("aa", "1", "ee", "3000000"), "1") // the same again
	s.want(s.detach("aa", "1", "ff", "3000000"), "0")
	s.want(s.acquire("bb", "2", "X"), "[WAIT 3000]")

	// Moved meanwhile: who has found it at its end leaves it alone.
	s.want(s.handle("0", 3, "ff", "5000000"), "[NOHANDLE]")
	s.want(s.handle("0", 0, "ee", "5000000"), "[HOLDER 0 T+3s]")
	s.want(s.handle("0", 3, "ee", "9000000"), "[DONE 1 X T 0]")
	s.hears("bb: x 2")
	s.want(s.handle("0", 9, "ee", "5000000"), "[DONE 1 X T 0]")
	s.hears("bb: x 2")
	s.want(s.handle("0", 3, "ee", "9000000"), "[HOLDER 0 T+5s]") // a late copy changes nothing
	s.hears()
	s.at(3 * second)
	s.want(s.reap("0", "1"), "1")
	s.has("lock", "dee=1, h1=X T T 0 0 - w|dee|mT+5s, k=1, m=X")
	s.has("kept ends", "r|1=T+5s")

	s.want(s.attach("bb", "3", "ff", ""), "[NOHANDLE]")
	s.want(s.attach("bb", "3", "ee", ""), "[ATTACHED T 2000000]")
	s.want(s.attach("bb", "3", "ee", ""), "[ATTACHED T 2000000]") // asked again
	s.has("lock", "dee=3, h3=X T T+3s bb 0 - v|dee|mT+5s, k=1, m=X")
	s.has("kept ends", "")
	s.hears()
	s.want(s.attach("aa", "4", "ee", ""), "[HOLDER bb]")
	s.want(s.attach("aa", "4", "ee", "bb"), "[ATTACHED T 2000000]")
	s.hears("bb: r 3 0 r")
	s.has("lock", "dee=4, h4=X T T+3s aa 0 - v|dee|mT+5s, k=1, m=X")
	s.want(s.release("bb", "3"), "0")
	s.want(s.release("aa", "4"), "1") // it is what it was
	s.hears("bb: x 2")
	s.has("lock", "dee=4, h4=X T T+3s 0 0 - v|dee|mT+5s, k=1, m=X")
	s.want(s.attach("aa", "4", "ee", ""), "[GONE]")
	s.want(s.attach("aa", "5", "ee", ""), "[ATTACHED T 2000000]")
	s.want(s.detach("aa", "5", "ab", "9000000"), "1") // under another key, and for longer
	s.hears("bb: x 2")
	s.has("lock", "dab=5, h5=X T T+3s 0 0 - v|dab|mT+12s, k=1, m=X")
	s.want(s.attach("aa", "6", "ee", ""), "[NOHANDLE]")
	s.want(s.attach("aa", "6", "ab", ""), "[ATTACHED T 9000000]")
	s.want(s.handle("0", 12, "ab", "0"), "[HOLDER aa T+12s]")
	s.want(s.handle("aa", 0, "ab", "0"), "[DONE 6 X T 0]")
	s.hears("bb: g 2 T+3s", "aa: r 6 0 r")
	s.has("lock", "h2=X T+3s T+3s bb 0 - w, m=X")
	s.want(s.detach("bb", "2", "ee", "0"), "1")
}

// A copy of a request that arrives when the time is over takes nothing from the lease that has attached it.
func TestScriptsAttachOnceMore(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "X")
	s.want(s.detach("aa", "1", "ee", "3000000"), "1")
	s.want(s.attach("aa", "2", "ee", ""), "[ATTACHED T 3000000]")
	s.want(s.acquire("aa", "3", "X"), "[WAIT 10000]")
	s.at(4 * second)
	s.want(s.attach("aa", "2", "ee", ""), "[NOHANDLE]")
	s.has("lock", "dee=2, h2=X T T aa 0 - v|dee|mT+3s, k=1, m=X")
	s.hears()
	s.want(s.detach("aa", "2", "ee", "0"), "1")
	s.hears("aa: g 3 T+4s")
}

// A lease that is over detaches and attaches nothing.
func TestScriptsDetachOfTheDead(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "X")
	s.want(s.detach("aa", "1", "ee", "60000000"), "1")
	s.want(s.attach("aa", "2", "ee", ""), "[ATTACHED T 60000000]")
	s.at(10 * second)
	s.open("bb")
	s.want(s.attach("aa", "3", "ee", ""), "[LOST]")
	s.want(s.detach("aa", "2", "ff", "60000000"), "-1")
	s.has("lock", "dee=2, h2=X T T 0 0 - v|dee|mT+60s, k=1, m=X")
	s.want(s.attach("bb", "3", "ee", ""), "[ATTACHED T 50000000]")
	s.at(60 * second)
	s.open("cc")
	s.want(s.attach("cc", "4", "ee", "bb"), "[NOHANDLE]")
	s.want(s.handle("bb", 60, "ee", "60000000"), "[NOHANDLE]")
}

// What a lease has attached and did not end is ended by the next one of its sidecar: by who knows its key and its id, before
// the dead lease is cleared away.
func TestScriptsDetachAfterTheLease(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "X")
	s.want(s.detach("aa", "1", "ee", "60000000"), "1")
	s.want(s.attach("aa", "2", "ee", ""), "[ATTACHED T 60000000]")
	s.at(10 * second)
	s.open("bb")
	s.want(s.acquire("bb", "3", "X"), "[WAIT 50000]")
	s.want(s.detach("bb", "1", "ee", "0"), "0")        // it has another id since
	s.want(s.detach("bb", "2", "ff", "0"), "0")        // that is of nothing
	s.want(s.detach("bb", "2", "ee", "60000000"), "0") // it is not that one's
	s.hears()
	s.want(s.detach("bb", "2", "ee", "0"), "1")
	s.hears("bb: g 3 T+10s+1")
	s.has("lock", "h3=X T+10s+1 T+10s bb 0 - w, m=X")
	s.want(s.reap("aa", "2"), "1")
	s.has("lock", "h3=X T+10s+1 T+10s bb 0 - w, m=X")
	s.empty("aa")
}

// Who asks again for what it has attached, and another one has since, does not take it back: it is about to hear that it
// has it no more, and would let go of it.
func TestScriptsAttachAgainAfterAnother(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "X")
	s.want(s.detach("aa", "1", "ee", "60000000"), "1")
	s.want(s.attach("aa", "2", "ee", ""), "[ATTACHED T 60000000]")
	s.want(s.attach("bb", "3", "ee", "aa"), "[ATTACHED T 60000000]")
	s.hears("aa: r 2 0 r")
	s.want(s.attach("aa", "2", "ee", "bb"), "[GONE]")
	s.hears()
	s.has("lock", "dee=3, h3=X T T bb 0 - v|dee|mT+60s, k=1, m=X")
	s.want(s.attach("aa", "4", "ee", "bb"), "[ATTACHED T 60000000]") // another request may
	s.hears("bb: r 3 0 r")
	s.want(s.detach("aa", "4", "ee", "0"), "1")
}
