package redislock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A lease is over in the microsecond in which it ends, for every script, also where that is the
// first request after the end; and what acts on that makes it over for good (law 3).
func TestScriptsEndALeaseOnTime(t *testing.T) {
	for _, c := range []struct {
		name        string
		do          func(s *still) string
		alive, dead string
		undecided   bool // nothing is done because the lease is over
	}{
		{"heartbeat", func(s *still) string { return s.beat("aa") }, "[f00d 0 T+1 1 [] ]", "nil", false},
		{"renew", func(s *still) string { return s.renew("aa") }, "1", "nil", false},
		{"acquire", func(s *still) string { return s.acquire("aa", "1", "X") }, "T+1", "[LOST]", true},
		{"release", func(s *still) string { return s.giveUp("aa", "1", remembered) }, "1", "-1", false},
		{"release of what is not there", func(s *still) string { return s.release("aa", "2") }, "0", "-1", false},
		{"downgrade", func(s *still) string { return s.downgrade("aa", "1") }, "1", "-1", false},
		{"describe", func(s *still) string { return s.describe("aa", "1", "w") }, "1", "-1", false},
		{"acknowledge", func(s *still) string { return s.ack("aa", "1", second) }, "1", "-1", true},
		{"force", func(s *still) string { return s.force("aa", "1", second) }, "1", "-1", false},
		{"reap", func(s *still) string { return s.reap("aa", "1") }, "0", "1", false},
		{"a try of another", func(s *still) string {
			reply := s.try("bb", "2", "X")
			return reply[:min(len(reply), 5)]
		}, "[HELD", "T+10s", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			after := func(d int64) *still {
				s := newStill(t)
				s.at(1)
				s.open("aa")
				s.want(s.acquire("aa", "1", "X"), "T+1")
				s.at(1 + d)
				s.open("bb")
				return s
			}
			s := after(ttl - 1)
			s.want(c.do(s), c.alive)
			s = after(ttl)
			s.want(c.do(s), c.dead)
			if c.undecided {
				return
			}
			s.has("leases", "aa=0, bb=T+20s+1")
			s.at(ttl / 2) // the clock is set back
			s.want(s.beat("aa"), "nil")
			s.want(s.acquire("aa", "3", "X"), "[LOST]")
		})
	}
}

// A lease that was never opened, or is cleared away, is not made by what is asked with it.
func TestScriptsDoNotMakeALease(t *testing.T) {
	s := newStill(t)
	s.open("bb")
	s.acquire("bb", "1", "X")
	s.want(s.beat("aa"), "nil")
	s.want(s.renew("aa"), "nil")
	s.want(s.acquire("aa", "2", "X"), "[LOST]")
	s.want(s.release("aa", "1"), "-1")
	s.want(s.giveUp("aa", "3", remembered), "-1")
	s.want(s.downgrade("aa", "1"), "-1")
	s.want(s.describe("aa", "1", "w"), "-1")
	s.want(s.ack("aa", "1", second), "-1")
	s.has("leases", "bb=T+10s")
	s.has("lock", "h1=X T T bb 0 - w, m=X")
}

// A heartbeat renews the lease from the moment in which Redis carries it out, and tells what the
// sidecar compares: who the server is, the time, how many holds and waiters there are, and what
// was revoked (law 1).
func TestScriptsRenewALease(t *testing.T) {
	s := newStill(t)
	s.want(s.open("aa"), "[f00d 0 T 0 1]")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "S")
	s.acquire("aa", "3", "X")
	s.at(second)
	s.want(s.beat("aa"), "[f00d 0 T 3 [] ]")
	s.has("leases", "aa=T+11s")
	s.at(2 * second)
	s.want(s.renew("aa"), "1")
	s.has("leases", "aa=T+12s")
	s.force("aa", "1", 5*second)
	s.force("aa", "2", 0)
	s.want(s.beat("aa"), "[f00d 0 T 2 [r|2 0 r|1 5000000] ]")
	s.want(s.beat("aa"), "[f00d 0 T 2 [r|2 0 r|1 5000000] ]") // in the same microsecond
}

// Heartbeats look for forced releases only where a flag beside the lease says that there may be
// some. It lives and ends as the lease does, and goes when nothing is left to be told (law 1).
func TestScriptsFlagForcedReleases(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "S")
	s.force("aa", "1", 5*second)
	s.has("leases", "aa=T+10s, aa!=T+10s, bb=T+10s")
	s.want(s.run(scriptLiving, []string{s.k.leases}), "[aa bb]")
	s.at(second)
	s.want(s.renew("aa"), "1")
	s.has("leases", "bb=T+10s, aa=T+11s, aa!=T+11s")
	s.at(2 * second)
	s.open("aa")
	s.has("leases", "bb=T+10s, aa=T+12s, aa!=T+12s")
	for i := range int64(2) { // until it is acknowledged
		s.at((3 + i) * second)
		s.want(s.beat("aa"), "[f00d 0 T 2 [r|1 5000000] ]")
	}
	s.has("leases", "bb=T+10s, aa=T+14s, aa!=T+14s")
	s.want(s.ack("aa", "1", 5*second), "1")
	s.want(s.beat("bb"), "[f00d 0 T 0 [] ]")
	s.at(5 * second)
	s.want(s.beat("aa"), "[f00d 0 T 2 [] ]")
	s.has("leases", "bb=T+14s, aa=T+15s")
	s.force("aa", "2", 0)
	s.has("leases", "bb=T+14s, aa=T+15s, aa!=T+15s")
	s.want(s.beat("aa"), "[f00d 0 T 1 [r|2 0] ]") // in the microsecond of the last one
	s.at(16 * second)
	s.want(s.find("cc", "0"), "bb")
	s.want(s.drop("bb", "reap"), "0")
	s.want(s.find("cc", "0"), "aa") // and never what stands beside it
	s.want(s.reap("aa", "1"), "1")
	s.want(s.drop("aa", "reap"), "0")
	s.has("leases", "")
	s.empty("aa")
	s.want(s.find("cc", "0"), "")
}

// A lease is opened again where nothing of what it was is left, and only there.
func TestScriptsOpenALease(t *testing.T) {
	s := newStill(t)
	look := func() string {
		return noClock(s.run(scriptOpen, []string{s.k.leases, s.k.leases}, "", 0))
	}
	s.want(look(), "[f00d 0 T 0 1]")
	s.has("leases", "")
	s.want(s.open("aa"), "[f00d 0 T 0 1]")
	s.acquire("aa", "1", "X")
	s.at(ttl - 1)
	s.want(s.open("aa"), "[f00d 0 T 0 1]")
	s.has("leases", "aa=T+19s+999999")
	s.at(2*ttl - 1)
	s.want(s.open("aa"), "[f00d 0 T 0 0]")
	s.has("leases", "aa=T+19s+999999")
	s.want(s.release("aa", "1"), "1") // nobody else has asked for it
	s.want(s.open("aa"), "[f00d 0 T 0 1]")
	s.has("leases", "aa=T+29s+999999")
	s.at(3 * ttl)
	s.want(look(), "[f00d 0 T 0 1]")
	s.has("leases", "aa=T+29s+999999")
}

// A lease whose sidecar died just before the clock was set back lasts for ten minutes at most, from when
// somebody stands behind it. A sidecar that lives has its whole TTL, whatever was seen.
func TestScriptsEndALeaseOfTheFuture(t *testing.T) {
	const longest = int64(lock.MaxTTL / time.Microsecond)
	s := newStill(t)
	s.at(24 * 3600 * second)
	s.open("dead")
	s.want(s.acquire("dead", "1", "X"), "T+86400s")
	s.at(0)
	s.open("aa")
	s.want(s.acquire("aa", "2", "X"), "[WAIT 600000]")
	s.has("leases", "aa=T+10s, dead=T+600s")
	s.at(longest - 1)
	s.open("bb")
	s.want(s.acquire("bb", "3", "X"), "[WAIT 1]")
	s.at(longest)
	s.want(s.acquire("bb", "3", "X"), "T+86400s+3") // fences go on from the last one
	s.at(-24 * 3600 * second)
	s.want(s.beat("bb"), "[f00d 0 T+86400s 1 [] aa]")
	s.has("leases", "aa=0, dead=0, bb=T-86390s")
}

// How old the mark is at least, sidecars have counted, and not the server's clock. That is told beside it.
func TestScriptsCountTheMark(t *testing.T) {
	s := newStill(t)
	look := func(run string, at, age int64) string {
		return s.run(scriptOpen, []string{s.k.leases, s.k.leases}, "", 0, fmt.Sprintf("%s %d", run, epoch+at), age)
	}
	s.want(s.run(scriptOpen, []string{s.k.leases, s.k.leases}, "", 0, "", 7*second), "[f00d 0 T 0 1 0]")
	s.at(3600 * second)
	s.want(s.open("aa"), "[f00d 0 T 0 1]")
	s.want(look("f00d", 0, 2*second), "[f00d 0 T 2000000 1 3600000000]")
	s.want(look("f00d", 0, second), "[f00d 0 T 2000000 1 3600000000]") // another one has seen it later
	s.want(look("beef", 0, 3*second), "[f00d 0 T 2000000 1 3600000000]")
	s.want(look("f00d", 1, 3*second), "[f00d 0 T 2000000 1 3600000000]")
	s.want(look("f00d", 0, 600*second), "[f00d 0 T 600000000 1 3600000000]")
	s.want(s.open("aa"), "[f00d 0 T 600000000 1]")
	s.want(s.beat("aa"), "[f00d 0 T 0 [] ]")
	s.is("f00d", "0ab") // promoted
	s.want(look("f00d", 0, 600*second), "[f00d 0ab T+3600s 0 1 0]")
	s.want(look("f00d", 3600*second, second), "[f00d 0ab T+3600s 1000000 1 0]")
	s.at(0)
	s.want(look("f00d", 3600*second, second), "[f00d 0ab T+3600s 1000000 1 -3600000000]")
	s.is("f00d", noTerm) // its last replica is long gone
	s.want(s.open("aa"), "[f00d 0 T+3600s 1000000 1]")
}

// A mark that a sidecar doubts is replaced once, however many doubt it, and whatever the clock does.
func TestScriptsReplaceTheMark(t *testing.T) {
	s := newStill(t)
	look := func(at int64, more ...any) string {
		return s.run(scriptOpen, []string{s.k.leases, s.k.leases}, append([]any{"", 0, fmt.Sprintf("f00d %d", epoch+at), 600 * second}, more...)...)
	}
	s.is("f00d", "0ab")
	s.want(s.open("aa"), "[f00d 0ab T 0 1]")
	s.want(look(0), "[f00d 0ab T 600000000 1 0]")
	s.at(second)
	s.want(look(1, "1"), "[f00d 0ab T 600000000 1 1000000]") // another mark
	s.want(look(0, "1"), "[f00d 0ab T+1s 0 1 0]")
	s.want(look(0, "1"), "[f00d 0ab T+1s 0 1 0]") // by another sidecar
	s.want(look(0), "[f00d 0ab T+1s 0 1 0]")
	s.want(s.beat("aa"), "[f00d 0ab T+1s 0 [] ]")
	s.want(look(second, "1"), "[f00d 0ab T+1s+1 0 1 -1]") // in the same microsecond
	s.at(0)
	s.want(look(second+1, "1"), "[f00d 0ab T+1s+2 0 1 -1000002]")
	s.want(look(second+2), "[f00d 0ab T+1s+2 600000000 1 -1000002]")
}

// The mark of a bucket says since when this process has had it, in this term: another process,
// or the same one after it was a replica, has had it since it is seen first (law 4).
func TestScriptsKnowAnotherServer(t *testing.T) {
	for _, redis := range []string{"7", "6"} {
		t.Run(redis, func(t *testing.T) { knowsAnotherServer(t, redis) })
	}
}

func knowsAnotherServer(t *testing.T, redis string) {
	t.Helper()
	s := newStill(t)
	if redis == "6" { // it gives one section at a time, and no REDIS_VERSION_NUM; another one gives no time
		s.before = strings.NewReplacer("{__index = server}", "{}", "table.concat(server.call('HMGET'", "tostring(server.call('HGET'", "server_time_usec", "none").Replace(s.before)
	}
	for i, c := range []struct{ run, term, want, mark string }{
		{"f00d", "", "[f00d 0 T 0 1]", "f00d 0 T"},
		{"f00d", noTerm, "[f00d 0 T 0 1]", "f00d 0 T"},
		{"beef", noTerm, "[beef 0 T+2s 0 1]", "beef 0 T+2s"},          // restarted
		{"beef", "0ab", "[beef 0ab T+3s 0 1]", "beef 0ab T+3s"},       // promoted
		{"beef", "0ab", "[beef 0ab T+3s 0 1]", "beef 0ab T+3s"},       // the same
		{"beef", "0cd", "[beef 0cd T+5s 0 1]", "beef 0cd T+5s"},       // there and back
		{"beef", noTerm, "[beef 0 T+5s 0 1]", "beef 0 T+5s"},          // its last replica is long gone
		{"f00d", "0ab", "[f00d 0ab T+7s 0 1]", "f00d 0ab T+7s"},       // the first one again
		{"f00d", "0ab00", "[f00d 0ab00 T+8s 0 1]", "f00d 0ab00 T+8s"}, // with zeros in it
		{"", "0ab00", "[ 0ab00 T+9s 0 1]", " 0ab00 T+9s"},             // it does not tell who it is
		{"", "0ab00", "[ 0ab00 T+9s 0 1]", " 0ab00 T+9s"},             // and still does not
		{"f00d", "", "[f00d 0 T+11s 0 1]", "f00d 0 T+11s"},            // without the field
		{"f00d", "0ab", "[f00d 0ab T+12s 0 1]", "f00d 0ab T+12s"},     // promoted
		{"f00d", "0ab", "[f00d 0ab T+12s 0 1]", "f00d 0ab T+12s"},     // the same
		{"beef", "0ab", "[beef 0ab T+14s 0 1]", "beef 0ab T+14s"},     // another process of that term
		{"beef", noTerm, "[beef 0 T+14s 0 1]", "beef 0 T+14s"},        // its last replica is gone
	} {
		s.at(int64(i) * second)
		s.is(c.run, c.term)
		s.want(s.open("aa"), c.want)
		if mark, _ := s.leases(); mark != c.mark {
			s.t.Errorf("the mark is %q, want %q", mark, c.mark)
		}
	}
}

// A request tells which term its lease trusts: a process in another one, which may have
// forgotten locks, does nothing. One whose replicas are gone has forgotten nothing (law 4).
func TestScriptsRefuseAnotherTerm(t *testing.T) {
	for _, c := range []struct{ is, trusted, want string }{
		{"0ab", "0ab", "T"}, {"0ab", "0cd", "[STRANGER]"}, {"0ab", "0", "[STRANGER]"}, {"0ab", "", "T"},
		{noTerm, "0ab", "T"}, {noTerm, "0", "T"}, {noTerm, "", "T"}, {"", "0ab", "T"}, {"", "0", "T"}, {"", "", "T"},
		{"ab00", "0", "[STRANGER]"},
	} {
		s := newStill(t)
		s.is("f00d", c.is)
		s.open("aa")
		s.want(s.ask(request{lease: "aa", id: "1", mode: "X", term: c.trusted}), c.want)
		if c.want != "T" {
			s.free("aa")
		}
	}
}

// A lease that ends in this microsecond is not among those that live.
func TestScriptsGiveLivingLeases(t *testing.T) {
	s := newStill(t)
	s.at(1)
	s.open("aa")
	s.at(2)
	s.open("bb")
	s.at(ttl + 1)
	s.want(s.run(scriptLiving, []string{s.k.leases}), "[bb]")
}

// find looks for a dead lease without a heartbeat.
func (s *still) find(lease, sweeps string) string {
	s.t.Helper()
	return s.run(scriptDead, []string{s.k.leases, s.k.reaper, s.k.records, s.k.recordEnds}, lease, sweeps)
}

// Dead leases are found one by one, by one sidecar for a moment, and are dead for good from then
// on: by its heartbeats, and where none comes by.
func TestScriptsFindTheDead(t *testing.T) {
	for name, find := range map[string]func(s *still, lease, sweeps string) string{
		"find": func(s *still, lease, sweeps string) string { return s.find(lease, sweeps) },
		"heartbeat": func(s *still, lease, sweeps string) string {
			reply := strings.TrimSuffix(s.beatAnd(lease, sweeps), "]")
			return reply[strings.LastIndex(reply, " ")+1:]
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStill(t)
			s.at(1)
			s.open("aa")
			s.at(2)
			s.open("bb")
			s.open("cc")
			s.at(ttl)
			s.want(find(s, "cc", "0"), "")
			s.has("reaper", "")
			s.want(find(s, "cc", "1"), "") // though none is dead
			s.has("reaper", "cc")
			if left := s.life(s.k.reaper); left <= 0 || left > 5*time.Second {
				t.Errorf("the turn is kept for %s", left)
			}
			s.at(ttl + 1)
			s.open("dd")
			s.want(find(s, "dd", "0"), "nil") // the turn of another
			_, left := s.leases()
			s.want(left[:5], "aa=T+")
			s.want(find(s, "cc", "0"), "aa")
			_, left = s.leases()
			s.want(left[:4], "aa=0")
			s.has("reaper", "cc")
			s.at(2)
			s.want(find(s, "dd", "1"), "nil")
			s.want(find(s, "cc", "0"), "aa") // the clock is set back
			s.want(s.beat("aa"), "nil")
		})
	}
}

// A heartbeat is good where Redis refuses what is for the dead.
func TestScriptsRenewWithoutTheRightToReap(t *testing.T) {
	s := newStillOn(t, testengine.New(t, testengine.Redis))
	rights := func(set string) {
		t.Helper()
		s.ok(s.b.client.Do(t.Context(), "acl", "setuser", "default", set).Err())
	}
	s.open("aa")
	s.at(1)
	s.open("bb")
	s.at(ttl)
	rights("-set")
	s.want(s.beat("bb"), "[f00d 0 T 0 [] nil]")
	s.has("leases", "aa=T+10s, bb=T+20s")
	rights("+set")
	s.want(s.beat("bb"), "[f00d 0 T 0 [] aa]")
	s.has("leases", "aa=0, bb=T+20s")
	rights("-zadd")
	s.at(2 * ttl)
	s.want(s.find("bb", "0"), "aa") // it is dead, whoever may mark it
}

// What hangs on a dead lease is cleared away and handed on, one by one; then the lease.
func TestScriptsClearAwayTheDead(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.acquire("aa", "1", "S")
	s.acquire("aa", "2", "S")
	s.force("aa", "2", 5*second)
	s.at(ttl - 1)
	s.open("bb")
	s.want(s.acquire("bb", "3", "X"), "[WAIT 1]")
	s.acquire("aa", "4", "X")
	s.hears("aa: r 2 5000000 r")
	s.want(s.drop("aa", "reap"), "0") // it lives
	s.want(s.drop("aa", ""), "3")
	s.has("leases", "aa=T+10s, aa!=T+10s, bb=T+19s+999999")
	s.has("revoked:aa", "r|2=5000000")
	s.want(s.reap("aa", "4"), "0")
	s.at(ttl)
	s.want(s.reap("aa", "4"), "1")
	s.has("queue", "3=T+9s+999999")
	s.has("waiters", "3=X 0 T+9s+999999 bb 0 - w")
	s.want(s.reap("aa", "1"), "1")
	s.hears("bb: g 3 T+10s+1") // 4 had the number of that moment
	s.want(s.reap("aa", "2"), "1")
	s.has("lock", "h3=X T+10s+1 T+10s bb 0 - w, m=X")
	s.want(s.drop("aa", "reap"), "0")
	s.has("leases", "bb=T+19s+999999")
	s.has("revoked:aa", "")
	s.has("mine:aa", "")
	s.want(s.run(scriptHolds, []string{s.k.lock + resource}, "3"), "T+10s+1")
	s.want(s.run(scriptHolds, []string{s.k.lock + resource}, "1"), "0")
}

// Leases live, end and are cleared away in a Redis whose memory is full.
func TestScriptsWithFullMemory(t *testing.T) {
	s := newStillOn(t, testengine.New(t, testengine.Redis))
	for _, l := range []string{"aa", "bb", "cc", "dd"} {
		s.open(l)
		s.acquire(l, "1"+l, "S")
		s.acquire(l, "2"+l, "S")
	}
	s.open("ee")
	s.at(ttl / 2)
	s.before = strings.Replace(s.before, "server.call('RPUSH'", "server.call('ECHO', '') --", 1) // it needs memory
	memory := func(limit string) {
		t.Helper()
		s.ok(s.b.client.ConfigSet(t.Context(), "maxmemory", limit).Err())
	}
	memory("1")
	if got := s.acquire("bb", "3", "X"); !strings.HasPrefix(got, "error: OOM") {
		t.Fatalf("the memory is not full: %s", got)
	}
	s.want(s.beat("bb"), "[f00d 0 T 2 [] ]")
	s.want(s.renew("cc"), "1")
	s.has("leases", "aa=T+10s, dd=T+10s, ee=T+10s, bb=T+15s, cc=T+15s")
	memory("0")
	s.at(ttl) // the test needs memory for that
	memory("1")
	s.want(s.advance(), "0")
	s.has("leases", "aa=0, dd=0, ee=T+10s, bb=T+15s, cc=T+15s")
	s.want(s.beat("ee"), "nil")
	s.want(s.beat("bb"), "[f00d 0 T 2 [] aa]")
	s.has("leases", "aa=0, dd=0, ee=0, cc=T+15s, bb=T+20s")
	s.want(s.renew("bb"), "1")
	s.want(s.open("bb"), "[f00d 0 T 0 1]")
	s.want(s.force("bb", "1bb", 5*second), "10000")
	s.want(s.ack("bb", "1bb", 5*second), "1")
	s.want(s.ack("bb", "1bb", 4*second), "1")
	s.want(s.find("bb", "1"), "aa")
	s.want(s.reap("aa", "1aa"), "1")
	s.want(s.reap("aa", "2aa"), "1")
	s.want(s.drop("aa", "reap"), "0")
	s.want(s.release("cc", "1cc"), "1")
	s.want(s.giveUp("cc", "2cc", remembered), "1")
	s.has("lock", "f=1, h1bb=S T+2 T bb T+14s 5000000 w, h2bb=S T+3 T bb 0 - w, m=S")
}
