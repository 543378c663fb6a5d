package zklock

import (
	"sync"
	"time"
)

// proof is what is known about how long a lease lives.
//
// The contract says that a lease lives for its TTL after a heartbeat that was
// answered. ZooKeeper's session timeout T does not say so by itself:
//
//   - A follower answers reads for some time after it has been cut off from the
//     leader, while the leader, which alone decides, lets the session expire. So a
//     heartbeat is a write. It is committed only by a leader that has a majority,
//     and only if that leader knows the session as alive.
//   - But a write through a follower does not touch the session at the leader.
//     The follower tells the leader whom it has heard of when it answers the
//     leader's pings, every half tick (Leader.lead, LearnerHandler.ping), and the
//     smallest session timeout is two ticks, so that is within T/4. In between
//     the session may still expire on account of what was heard before.
//
// So T is one and a half times the TTL. When a heartbeat was sent at time t and
// the one before it at time p, the leader heard of p by p+T/4 or it would have
// expired, and the session lives until p+T at least. The answer to the later
// one, if it arrives before p+TTL = p+T/1.5, leaves the leader T/3 to hear of t:
// enough, and then it lives until t+T. An answer that arrives later does not
// prove that. Such a heartbeat is only a beginning: a second one, T/4 and a
// little after that answer, shows by its success that the leader has heard of
// the first.
//
// A change of the leader or of the server only makes sessions live longer: a new
// leader begins all of them anew (SessionTrackerImpl), and a session that comes
// to another server is touched at the leader at once (Leader.revalidateSession).
type proof struct {
	ttl time.Duration

	mu       sync.Mutex
	renewed  time.Duration // when the last heartbeat was sent that proves life
	first    time.Duration // when the one was sent that only begins; 0: none
	answered time.Duration // when that was answered
}

// newProof is for a session that was asked for at that time.
func newProof(ttl, sent time.Duration) *proof { return &proof{ttl: ttl, renewed: sent} }

// sessionTimeout is T.
func sessionTimeout(ttl time.Duration) time.Duration { return ttl + ttl/2 }

// beat takes a heartbeat that was answered, and says whether it proves that the
// lease lives for a TTL after it was sent.
func (p *proof) beat(sent, answered time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	heard := sessionTimeout(p.ttl) / 4
	switch {
	case sent < p.renewed: // another one overtook it
		return true
	case answered < p.renewed+p.ttl, p.first != 0 && sent >= p.answered+heard+heard/4 && answered < p.first+p.ttl:
		p.renewed, p.first = sent, 0
		return true
	case p.first == 0 || answered >= p.first+p.ttl:
		p.first, p.answered = sent, answered
	}
	return false
}

// overdue reports whether the lease may be over: nothing more is asked for in
// its name until a heartbeat has proved the contrary, because any request, in
// the place of heartbeats that nobody sends any more, would keep it alive.
func (p *proof) overdue(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now >= p.renewed+p.ttl
}
