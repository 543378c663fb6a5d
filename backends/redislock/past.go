package redislock

import (
	"sync"
	"sync/atomic"
	"time"
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
// server has said may be that the lease is over.
type past struct {
	version atomic.Uint64 // counts the marks that were seen, and the presences

	mu    sync.Mutex
	mark  string
	by    *presence     // that has shown it
	since time.Duration // on the backend's clock
	known time.Duration // how old the store knows the mark to be
	told  time.Duration // on the backend's clock, when it was last to be told
}

// saw takes note of the bucket's mark, which is age old at least, as the store knows.
func (p *past) saw(mark string, by *presence, age, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case mark == p.mark && by == p.by:
		p.known = max(p.known, age)
		return
	case p.mark == "":
		p.since = now - age
	default:
		p.since = now
	}
	p.mark, p.by, p.known, p.told = mark, by, age, p.since
	p.version.Add(1)
}

// counted gives the mark, and how old it is at least; "": there is none yet.
func (p *past) counted(now time.Duration) (mark string, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mark, now - p.since
}

// untold tells that the grace is over and the store does not know that. It says so once in a grace.
func (p *past) untold(grace, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mark == "" || p.known >= grace || now-p.since < grace || now-p.told < grace {
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
