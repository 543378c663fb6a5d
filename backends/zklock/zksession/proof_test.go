package zksession

import (
	"math/rand/v2"
	"testing"
	"time"
)

// ensemble is a model of a leader, a follower and one of the follower's clients, a
// millisecond a step. It does what proof says that servers do, in the worst order: a
// leader that goes on after a pause lets sessions expire before it reads anything.
type ensemble struct {
	rnd           *rand.Rand
	tick, timeout int

	now      int
	resumes  int // when the leader goes on
	expiry   int // of the session
	dead     bool
	nextPing int
	touched  bool     // the follower has something to tell
	up, down []parcel // between the follower and the leader, in order
	commits  []int    // when writes are on a majority's disks
	answers  int      // that the client has got
}

type parcel struct {
	kind byte // 'p'ing, 't'ouch, 'w'rite, 's'ync, 'm'ove; 'a'nswer
	at   int  // when it arrives
}

func (e *ensemble) touch() {
	e.expiry = ((e.now+e.timeout)/e.tick + 1) * e.tick
}

func (e *ensemble) later(most int) int { return e.now + 1 + e.rnd.IntN(most) }

// send puts a packet behind the others.
func (e *ensemble) send(q *[]parcel, kind byte) {
	at := e.later(3)
	if n := len(*q); n > 0 {
		at = max(at, (*q)[n-1].at)
	}
	*q = append(*q, parcel{kind, at})
}

// pause has the leader do nothing for some time.
func (e *ensemble) pause() { e.resumes = e.later(e.timeout) }

// step lets a millisecond pass.
func (e *ensemble) step() {
	e.now++
	if e.now >= e.resumes {
		e.lead()
		if e.rnd.IntN(5*e.timeout) == 0 {
			e.pause()
		}
	}
	for len(e.down) > 0 && e.down[0].at <= e.now { // the follower
		p := e.down[0]
		e.down = e.down[1:]
		switch {
		case p.kind == 'a':
			if e.answers++; e.rnd.IntN(20) == 0 { // the worst moment
				e.pause()
			}
		case e.touched:
			e.send(&e.up, 't')
			e.touched = false
		}
	}
}

// lead is what the leader does.
func (e *ensemble) lead() {
	if e.now >= e.expiry {
		e.dead = true
	}
	if e.now >= e.nextPing {
		e.send(&e.down, 'p')
		e.nextPing = e.now + e.tick/2
	}
	for len(e.commits) > 0 && e.commits[0] <= e.now {
		e.commits = e.commits[1:]
		e.send(&e.down, 'a')
	}
	for len(e.up) > 0 && e.up[0].at <= e.now && !e.dead {
		p := e.up[0]
		e.up = e.up[1:]
		switch p.kind {
		case 't':
			e.touch()
		case 'w':
			e.commits = append(e.commits, e.later(5))
		case 's':
			e.send(&e.down, 'a')
		case 'm':
			e.touch()
			e.send(&e.down, 'a')
		}
	}
}

// ask sends a request of the client and waits for its answer; false: the session is
// over.
func (e *ensemble) ask(kind byte) bool {
	if kind != 'm' {
		e.touched = true // a request is noted before it is passed on
	}
	e.send(&e.up, kind)
	for want := e.answers + 1; e.answers < want; {
		if e.step(); e.dead {
			return false
		}
	}
	return true
}

// promises runs a client that beats, regularly and late, until its session is over,
// and says by how much it was over before the last promise.
func (e *ensemble) promises(p *proof, ttl int, proven func(b answered, since time.Duration) bool) (broken int) {
	e.touch()
	promised := ttl
	for !e.dead && e.now < 100*ttl {
		pause := ttl / 3
		switch e.rnd.IntN(4) {
		case 0:
			pause = e.rnd.IntN(ttl)
		case 1:
			pause = e.rnd.IntN(ttl / 50)
		}
		for until := e.now + pause; e.now < until; {
			e.step()
		}
		since := e.now
		for range 1 + maxMoves {
			sent := e.now
			if !e.ask('w') {
				break
			}
			b := answered{ms(sent), ms(e.now)}
			if !e.ask('s') {
				break
			}
			if proven(b, ms(since)) {
				promised = since + ttl
				break
			}
			asked := e.now
			if !e.ask('m') {
				break
			}
			p.moved(nil, ms(asked))
		}
	}
	for !e.dead { // by the last word of the client
		e.step()
	}
	return max(0, promised-e.now)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// TestProofAgainstPauses: whatever ticks servers have and whenever the leader pauses,
// no session is over before what its beats have promised. A rule that believes each
// beat that was answered promises too much.
func TestProofAgainstPauses(t *testing.T) {
	for _, c := range []struct{ ttl, tick int }{{1000, 200}, {1000, 1000}, {200, 800}, {1000, 100}, {300, 600}} {
		naive := 0
		for seed := range uint64(300) {
			run := func(believe bool) int {
				p := newProof(ms(c.ttl), ms(c.tick))
				e := &ensemble{rnd: rand.New(rand.NewPCG(seed, 1)), tick: c.tick, timeout: int(p.timeout / time.Millisecond)}
				if believe {
					e.timeout = c.ttl * 3 / 2 // as it was
				}
				e.nextPing = e.rnd.IntN(c.tick/2) + 1
				return e.promises(p, c.ttl, func(b answered, since time.Duration) bool { return p.beat(nil, b, since) || believe })
			}
			if broken := run(false); broken > 0 {
				t.Fatalf("TTL %d, tick %d, run %d: the session was over %d ms before what was promised", c.ttl, c.tick, seed, broken)
			}
			if run(true) > 0 {
				naive++
			}
		}
		if naive == 0 {
			t.Errorf("TTL %d, tick %d: the model never breaks a rule that believes every answer", c.ttl, c.tick)
		}
		t.Logf("TTL %d, tick %d: believing every answer breaks %d of 300 runs", c.ttl, c.tick, naive)
	}
}

// TestRegularBeatsDoNotMove: beats that come every third of the TTL, and are answered
// in a tenth of it, are proof without another connection.
func TestRegularBeatsDoNotMove(t *testing.T) {
	for _, ttl := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 3 * time.Second, 10 * time.Second, time.Minute, 10 * time.Minute} {
		for _, tick := range []time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second, 6 * time.Second} {
			p := newProof(ttl, tick)
			for i := range 200 {
				sent := time.Duration(i+1) * ttl / 3
				if !p.beat(nil, answered{sent, sent + ttl/10}, sent) {
					t.Fatalf("TTL %s, tick %s: beat %d proves nothing", ttl, tick, i)
				}
			}
		}
	}
}

// TestTimeoutAndLongest: each says what the other needs.
func TestTimeoutAndLongest(t *testing.T) {
	for _, c := range []struct{ ttl, tick, timeout time.Duration }{
		{10 * time.Second, 2 * time.Second, 15334 * time.Millisecond},
		{time.Minute, 2 * time.Second, 90 * time.Second},
		{500 * time.Millisecond, 2 * time.Second, 2667 * time.Millisecond},
		{2 * time.Second, 200 * time.Millisecond, 3 * time.Second},
	} {
		if got := Timeout(c.ttl, c.tick); got != c.timeout {
			t.Errorf("a TTL of %s at a tick of %s needs %s, want %s", c.ttl, c.tick, got, c.timeout)
		}
		if got := longest(c.timeout, c.tick); got > c.ttl || got < c.ttl-2*time.Millisecond {
			t.Errorf("a timeout of %s at a tick of %s is enough for %s, want %s", c.timeout, c.tick, got, c.ttl)
		}
	}
	if longest(time.Second, 2*time.Second) != 0 {
		t.Error("a timeout below the tick is enough for something")
	}
}
