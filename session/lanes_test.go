package session

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// lanesTest is lanes beside a naive model of them.
type lanesTest struct {
	lanes
	all []*placed // in the order in which they are to go on
}

type placed struct {
	place
	rung bool
}

// Ring implements lock.Bell.
func (p *placed) Ring() { p.rung = true }

// free is what the model says: may it go on?
func (l *lanesTest) free(p *placed) bool {
	for _, o := range l.all {
		if o == p {
			return true
		}
		if o.resource == p.resource && (o.bell != nil || p.try) {
			return false
		}
	}
	return false
}

// Each goes on when those before it, of its resource, have left, and not before that; and nothing is kept
// of a lane that is empty.
func TestLanes(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		l := &lanesTest{}
		for n := range uint64(100) {
			if len(l.all) == 0 || rnd.IntN(5) < 3 {
				p := &placed{}
				p.resource, p.number = lock.Resource(fmt.Sprint(rnd.IntN(3))), n
				if rnd.IntN(3) > 0 {
					p.bell, p.try = p, rnd.IntN(3) == 0
				}
				if p.bell == nil && rnd.IntN(2) == 0 { // it is given up
					at := slices.IndexFunc(l.all, func(o *placed) bool { return o.resource == p.resource && !o.turn.Load() })
					if at < 0 {
						at = len(l.all)
					}
					l.all = slices.Insert(l.all, at, p)
					l.precede(&p.place)
				} else {
					l.all = append(l.all, p)
					l.enter(&p.place)
				}
			} else {
				i := rnd.IntN(len(l.all))
				p := l.all[i]
				l.all = slices.Delete(l.all, i, i+1)
				l.leave(&p.place)
				l.leave(&p.place) // it may be told twice
			}
			for i, p := range l.all {
				if p.bell != nil && p.turn.Load() != l.free(p) {
					t.Fatalf("seed %d, step %d: place %d may go on: %v, want %v", seed, n, i, p.turn.Load(), l.free(p))
				}
				if p.rung && !p.turn.Load() {
					t.Fatalf("seed %d, step %d: place %d was rung and may not go on", seed, n, i)
				}
			}
		}
		for _, p := range l.all {
			l.leave(&p.place)
		}
		if l.only != nil || l.rest != nil {
			t.Fatalf("seed %d: left %v, %v", seed, l.only, l.rest)
		}
	}
}

// What is asked for again stands where it came: before those that came later and have not gone on, whatever
// is done to holds between them.
func TestLanesAskedAgain(t *testing.T) {
	var l lanes
	places := make([]placed, 4)
	for _, i := range []int{0, 2, 3} {
		places[i].bell, places[i].number = &places[i], uint64(i)
		l.enter(&places[i].place)
		l.enter(new(place))
	}
	places[1].bell, places[1].number = &places[1], 1
	l.enter(&places[1].place)
	for i := range places {
		for k := range places {
			if places[k].turn.Load() != (k <= i) {
				t.Errorf("%d have left: place %d may go on: %v", i, k, places[k].turn.Load())
			}
		}
		l.leave(&places[i].place)
	}
}

// What an app has given up, or asks for, costs the same however much there is of it: it may give up thousands in a
// second while the store does not answer. With a look at each of those before it, this takes a minute.
func TestLanesOfMany(t *testing.T) {
	const many = 200_000
	began := time.Now()
	var l lanes
	places := make([]placed, 3*many)
	for i := range places {
		p := &places[i]
		p.resource, p.number = "r", uint64(i)
		switch i / many {
		case 0:
			l.precede(&p.place)
		case 1:
			l.enter(&p.place)
		default:
			p.bell, p.try = p, i%2 == 0
			l.enter(&p.place)
		}
	}
	for i := range places {
		p := &places[i]
		if first := &places[max(i, 2*many)]; first.turn.Load() != (i >= 2*many) {
			t.Fatalf("%d have left: the first request may go on: %v", i, first.turn.Load())
		}
		l.leave(&p.place)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
