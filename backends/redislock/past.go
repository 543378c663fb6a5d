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
// that has just started knows too. Who saw the change itself counts from then, by
// its own clock; only who finds the first mark must believe the server's clock.
type past struct {
	version atomic.Uint64 // counts the marks that were seen

	mu    sync.Mutex
	mark  string
	since time.Duration // on the backend's clock
}

// saw takes note of the bucket's mark, which was age old by the server's clock.
func (p *past) saw(mark string, age, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case mark == p.mark:
		return
	case p.mark == "":
		p.since = now - max(age, 0)
	default:
		p.since = now
	}
	p.mark = mark
	p.version.Add(1)
}

// left is how long grants must be kept back, and for which mark that is said.
func (p *past) left(grace, now time.Duration) (time.Duration, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since + grace - now, p.version.Load()
}
