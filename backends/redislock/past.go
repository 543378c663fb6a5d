package redislock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// past is since when the server that has a bucket now has had it. Another server
// had it before, or the data is new, or was lost: in any case there may be holders
// that this server does not know, or not as they are. So no grant is handed to an
// app until every lease from before has either been renewed and compared with what
// this server knows, or is over. The same habit is known as the grace period of NFS
// lock servers and of Chubby.
//
// The mark of the bucket in the store says it (see server.lua), so that a sidecar
// that has just started knows too. Each counts from when it saw the mark first, on its own clock, and
// tells the store how long that is. Who starts later goes on from there. The server's
// clock has no part in it: it may have been set since.
//
// Where the road led to another server meanwhile and is back, the mark is what it was. The presence is
// another one then (see road), also where nothing was learned of the marks there: all that the other
// server has said may be that the lease is over. So it is with a sidecar that has just started there, and sees its first mark here.
//
// A mark that stood there while another server still answered is in doubt: what that one has granted this server
// does not know, and nobody else here waits for it. So whoever comes from there has the mark replaced by
// a new one, and all wait. How old the mark is for that the server's clock says, too: where it was set forward, or back to before the
// mark, all wait for nothing, in the latter case once for each sidecar that comes.
type past struct {
	version atomic.Uint64 // counts the marks that were seen, and the presences

	mu    sync.Mutex
	mark  string
	by    *presence     // that has shown it
	stamp int64         // of the mark, see seen
	since time.Duration // on the backend's clock
	first bool          // no other mark or presence was seen before
	came  time.Duration // on the backend's clock, when the mark was seen first
	known time.Duration // how old the store knows the mark to be
	told  time.Duration // on the backend's clock, when it was last to be told
	asked time.Duration // on the backend's clock, when the last request was sent that was answered
	other time.Duration // when a server before this one was asked last that has answered; 0: there was none, or it is decided whether this mark is in doubt
	led   bool          // the mark was seen first after the road has led here from another server
	doubt bool          // the mark is to be replaced
}

// seen is what an answer shows of a bucket's mark.
type seen struct {
	mark  string
	stamp int64 // since when, by the server's clock; that of the next mark of a process is larger, unless the clock was set
	by    *presence
	age   time.Duration // how old the mark is at least, as the store knows; 0: it does not, or does not say
	clock time.Duration // how old it is by the server's clock, which may have been set since; negative: it was set back, or it is not said
	back  bool          // that clock was set back to before the mark
	sent  time.Duration // on the backend's clock, when that was asked
}

// saw takes note of the bucket's mark.
func (p *past) saw(s seen, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := s.mark == p.mark
	switch {
	case p.mark == "":
		if silence, ever := s.by.silence(); ever { // it comes from another server, which has not shown a mark
			p.other, p.led = now-silence, true
		}
	case !same && s.by == p.by && s.sent < p.came && s.stamp < p.stamp:
		return // the answer is of before the mark was replaced, and comes late
	case !same:
		p.other, p.led, p.doubt = p.asked, s.by != p.by, false
		if silence, ever := s.by.silence(); ever && s.by != p.by && s.by.road == p.by.road { // not each answer shows a mark
			p.other = max(p.other, now-silence)
		}
	case s.by.passedAnother(p.by):
		p.other, p.doubt = 0, true
	}
	p.asked = max(p.asked, s.sent)
	switch {
	case p.other == 0:
	case s.back && p.led: // the mark that replaces it is seen on this server first, so it is replaced once
		p.other, p.doubt = 0, true
	case s.age > 0 || s.clock >= 0:
		p.other, p.doubt = 0, stoodThere(max(s.age, s.clock), now-p.other)
	}
	switch {
	case same && s.by == p.by:
		p.known = max(p.known, s.age)
		if p.first { // others have told it meanwhile
			p.since = min(p.since, now-s.age)
		}
		return
	case p.mark == "" && p.other == 0 && !p.doubt:
		p.first, p.since = true, now-s.age
	default:
		p.first, p.since = false, now
	}
	if !same {
		p.came = now
	}
	p.mark, p.stamp, p.by, p.known, p.told = s.mark, s.stamp, s.by, s.age, p.since
	p.version.Add(1)
}

// stoodThere tells whether a mark of that age was there when another server answered last. It leaves room for clocks
// of different speed, and less of it than a lease has that ends before its TTL (heartbeat.Margin): who may have
// something there has heard of that server within nine tenths of a grace.
func stoodThere(age, silence time.Duration) bool { return age-silence > silence/16 }

// doubted tells whether the mark is to be replaced.
func (p *past) doubted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.doubt
}

// unsettled tells whether the mark is to be replaced, or nobody has said yet how old it is, and it may have to be.
func (p *past) unsettled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.doubt || p.other != 0
}

// counted gives the mark, how old it is at least, and whether it is in doubt; "": there is none yet.
func (p *past) counted(now time.Duration) (mark string, age time.Duration, doubt bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mark, now - p.since, p.doubt
}

// untold tells that the grace is over and the store does not know that, or that the mark is twice as old as the store
// knows: the grace of a sidecar with a longer TTL is longer. It says so once in a grace.
func (p *past) untold(grace, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := now - p.since
	if p.mark == "" || grace == 0 || age < grace || now-p.told < grace {
		return false
	}
	if p.known >= grace && (p.known >= lock.MaxTTL || age < 2*p.known) {
		return false
	}
	p.told = now
	return true
}

// left is how long grants must be kept back, and for which mark that is said.
func (p *past) left(grace, now time.Duration) (time.Duration, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since + grace - now, p.version.Load()
}
