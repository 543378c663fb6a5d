package zksession

import (
	"sync"
	"time"
)

// proof is what is known about how long a session lives. A lease needs it to live
// for the TTL after a beat that was answered, and ZooKeeper does not say so by
// itself:
//
//   - The leader alone lets sessions expire, T (the session timeout, rounded up to a
//     tick) after it last heard of them. It hears of them by their requests if they
//     are its own clients. Of a follower's clients it hears when they open a session
//     or come to that follower from elsewhere (Leader.revalidateSession), and
//     otherwise only by the follower's answers to its pings, every half tick
//     (Leader.lead, Learner.ping). A request that a follower passes on to it is no
//     sign of life to it (LearnerHandler.run), not even a write.
//   - So a leader that pauses just after a write was answered does not know of that
//     write's session, and what it finds expired when it goes on has expired,
//     whatever is on its way.
//   - A follower answers reads for some time after it was cut off, while the others
//     may have let the session expire. So a beat is a write.
//
// So a beat that was answered proves nothing of itself but of the one before. A
// connection carries requests in order, and so does the one between a follower and
// the leader, in both directions: when a beat was answered, a later one comes half a
// tick or more after that answer, and a sync behind it is answered too, then the
// follower has had a ping in between and has answered it before it passed on the
// sync, so the leader has heard of the first beat. From then on the session lives
// until T after that beat was sent. What is assumed is that a leader that can commit
// a write, which takes several of its threads and a majority's disks, also has had
// its main loop send the ping that was due before.
//
// T is so much longer than the TTL that this is enough when beats come every third
// of the TTL. Where it is not (they were late, or hung), the session goes over to
// another connection, of which the leader hears at once.
//
// A change of the leader only makes sessions live longer: a new one counts
// the time of each from its start (SessionTrackerImpl). A deposed leader that still hears of a session
// proves nothing, which is why a write on the same connection must follow: a server
// that changes its leader ends its connections.
type proof struct {
	ttl, timeout, report time.Duration

	mu      sync.Mutex
	on      *link         // the connection that all of this is about
	touched time.Duration // the leader has heard of the session at that time or later
	beats   []answered    // that the leader may not have heard of, oldest first
}

// answered is a beat with an answer.
type answered struct{ sent, at time.Duration }

// DefaultTick is the tick of a server that is not told another.
const DefaultTick = 2 * time.Second

// Timeout is the session timeout that a lease needs, so that it lives for its TTL
// after each of its beats, which come every third of it: another third is lost until
// the leader has heard of a beat, a follower reports within half a tick, and the
// rest is for beats that come late.
func Timeout(ttl, tick time.Duration) time.Duration {
	return (max(ttl+ttl/2, ttl+ttl/3+tick) + time.Millisecond - 1).Truncate(time.Millisecond)
}

// longest is the longest TTL for which that session timeout is enough; 0: none is.
func longest(timeout, tick time.Duration) time.Duration {
	return max(0, min(timeout*2/3, (timeout-tick)*3/4).Truncate(time.Millisecond))
}

// newProof is for a lease of that TTL at servers of that tick.
func newProof(ttl, tick time.Duration) *proof {
	return &proof{ttl: ttl, timeout: Timeout(ttl, tick), report: tick/2 + tick/8}
}

// moved takes the news that the session is on a connection whose begin was asked
// for at that time.
func (p *proof) moved(l *link, asked time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on, p.touched, p.beats = l, asked, nil
}

// maxBeats bounds what is remembered of beats. More come only when they overlap.
const maxBeats = 64

// beat takes a beat on a connection that was answered, with a sync behind it, and
// says whether the session is proven to live for the TTL after that time.
func (p *proof) beat(l *link, b answered, since time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on != l {
		return false
	}
	for len(p.beats) > 0 && p.beats[0].at+p.report <= b.sent {
		p.touched, p.beats = max(p.touched, p.beats[0].sent), p.beats[1:]
	}
	if len(p.beats) < maxBeats {
		p.beats = append(p.beats, b)
	}
	return since+p.ttl <= p.touched+p.timeout
}
