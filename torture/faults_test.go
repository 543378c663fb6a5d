package torture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/torture/history"
	"github.com/locksidecar/locksidecar/torture/schedule"
)

// round breaks things as a schedule says, each lane in a goroutine of its own. All is
// healed when it returns.
type round struct {
	*world
	seed  uint64
	began time.Time
	end   time.Time
}

func (w *world) breakThings(seed uint64, s schedule.Schedule, length time.Duration) {
	r := &round{world: w, seed: seed, began: time.Now()}
	r.end = r.began.Add(length)
	var lanes sync.WaitGroup
	lane := func(who string, faults []schedule.Fault, do func(schedule.Fault) (heal func() error, err error)) {
		lanes.Go(func() {
			for _, f := range faults {
				if time.Sleep(time.Until(r.began.Add(f.At))); time.Now().After(r.end) {
					return // this machine is late, and so is the lane
				}
				w.note(who + ": " + f.String())
				heal, err := do(f)
				if heal != nil {
					time.Sleep(min(f.For, time.Until(r.end)))
					err = errors.Join(err, heal())
					w.note(who + ": " + string(f.Kind) + " is over")
				}
				if err != nil {
					w.t.Errorf("%s: %s: %v", who, f, err)
					return
				}
			}
		})
	}
	for i, faults := range s.Apps {
		lane(fmt.Sprintf("app%d", i), faults, func(f schedule.Fault) (func() error, error) { return r.app(w.apps[i], f), nil })
	}
	for i, faults := range s.Sides {
		lane(w.sides[i].name, faults, func(f schedule.Fault) (func() error, error) { return r.side(w.sides[i], f) })
	}
	for i, faults := range s.Roads {
		turn := 0 // one of the roads at a time
		lane("road of "+w.sides[i].name, faults, func(f schedule.Fault) (func() error, error) {
			roads := w.sides[i].roads
			road := roads[turn%len(roads)]
			turn++
			return r.road(road, f), nil
		})
	}
	lane("store", s.Store, r.store)
	lane("administrator", s.Admin, func(f schedule.Fault) (func() error, error) { r.force(f); return nil, nil })
	lanes.Wait()
	time.Sleep(time.Until(r.end))
	w.note("all is healed")
}

func (r *round) app(a *appSlot, f schedule.Fault) (heal func() error) {
	if f.Kind == schedule.FreezeApp {
		a.p.signal(syscall.SIGSTOP)
		return func() error { a.p.signal(syscall.SIGCONT); return nil }
	}
	a.kill()
	return func() error { return a.start(r.seed) }
}

func (r *round) side(s *side, f schedule.Fault) (heal func() error, err error) {
	switch f.Kind {
	case schedule.FreezeSide:
		s.p.signal(syscall.SIGSTOP)
		return func() error { s.p.signal(syscall.SIGCONT); return nil }, nil
	case schedule.StopSide:
		return s.start, s.stop()
	default:
		s.kill()
		return s.start, nil
	}
}

func (r *round) road(road *testengine.Proxy, f schedule.Fault) (heal func() error) {
	switch f.Kind {
	case schedule.Cut:
		road.Inject(testengine.Cut)
	case schedule.Sever:
		road.Inject(testengine.Sever)
	case schedule.HoldAll:
		road.Inject(testengine.HoldAll)
	case schedule.HoldRequests:
		road.Inject(testengine.HoldRequests)
	case schedule.HoldReplies:
		road.Inject(testengine.HoldReplies)
	case schedule.Delay:
		road.Delay(f.Amount)
	default:
		road.Mute(r.plan.mute)
	}
	return road.Heal
}

// storeLimit is for a server that starts or is promoted, on a busy machine.
const storeLimit = 2 * time.Minute

func (r *round) store(f schedule.Fault) (heal func() error, err error) {
	if slices.Contains(r.plan.forgets, f.Kind) { // what it keeps by then, and what it has kept meanwhile
		r.forgets()
		defer r.forgets()
	}
	within := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
		defer cancel()
		return do(ctx)
	}
	crash := func(c testengine.Crasher, d testengine.Data) (func() error, error) {
		err := within(func(ctx context.Context) error { return c.Crash(ctx, d) })
		return func() error { return within(c.Start) }, err
	}
	pause := func(p testengine.Pauser) (func() error, error) {
		return func() error { return within(p.Resume) }, within(p.Pause)
	}
	server := r.servers[f.Pick%len(r.servers)]
	switch f.Kind {
	case schedule.PauseStore:
		return pause(server.(testengine.Pauser))
	case schedule.RestartStore:
		return crash(server.(testengine.Crasher), testengine.KeepData)
	case schedule.EmptyStore:
		return crash(server.(testengine.Crasher), testengine.DropData)
	case schedule.PauseNode, schedule.RestartNode:
		nodes := server.(testengine.Noder).Nodes()
		n := nodes[f.Pick%len(nodes)]
		if f.Kind == schedule.PauseNode {
			return pause(n)
		}
		return crash(n, testengine.KeepData)
	case schedule.FailOver, schedule.LoseOver:
		o, data := server.(testengine.Failoverer), testengine.KeepData
		if f.Kind == schedule.LoseOver {
			data = testengine.DropData
		}
		return nil, within(func(ctx context.Context) error {
			if err := o.FailOver(ctx, data); err != nil {
				return err
			}
			return o.Healthy(ctx)
		})
	default:
		if r.plan.shift < 0 { // always further back: the way ahead would end leases early
			r.shift += f.Amount
			r.dozes = -r.shift
		} else {
			r.shift = f.Amount
		}
		return nil, within(func(ctx context.Context) error { return server.(testengine.Clocker).ShiftClock(ctx, r.shift) })
	}
}

// force takes somebody's hold, or a place in the queue, through one of the sidecars. It
// is in vain when that does not answer.
func (r *round) force(f schedule.Fault) {
	s := r.sides[f.Pick%len(r.sides)]
	_ = s.ask(func(ctx context.Context, c *client.Client) error {
		type place struct {
			resource, lock string
			fence          int64
		}
		var all []place
		for l, err := range c.List(ctx, "") {
			if err != nil {
				return err
			}
			for _, h := range slices.Concat(l.GetHolders(), l.GetHolders(), l.GetWaiters()) { // rather a hold
				all = append(all, place{l.GetResource(), h.GetLockId(), h.GetFence()})
			}
		}
		if len(all) == 0 {
			return nil
		}
		p := all[f.Pick/len(r.sides)%len(all)]
		r.witness.Write(history.Record{Kind: history.Forced, At: history.Now(), Lock: p.lock, Fence: p.fence, Grace: f.Amount})
		_, err := c.ForceRelease(ctx, p.resource, p.lock, f.Amount)
		return err
	})
}
