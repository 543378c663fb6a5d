package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// try asks for a grant without a wait. It looks first, so that most of those who
// are refused leave no trace in the queue.
func (d *driver) try(ctx context.Context, s *spot) (leasekit.Answer, error) {
	d.mu.Lock()
	fresh := s.name == "" && !s.unsure
	d.mu.Unlock()
	if fresh {
		var v *survey
		err := insist(ctx, func() (err error) { v, err = d.wayOf(ctx, s); return err })
		if errors.Is(err, zksession.ErrNotSent) && ctx.Err() != nil {
			return leasekit.Answer{}, leasekit.ErrNotSent
		}
		if err == nil && v != nil {
			err = &lock.HeldError{Cause: lock.ErrHeld, Status: v.head}
		}
		if err != nil {
			return leasekit.Answer{}, err
		}
	}
	if err := d.enter(ctx, s); err != nil {
		return leasekit.Answer{}, err
	}
	if a, _, err := d.answer(s); a.Granted || err != nil {
		return a, err
	}
	// Somebody was faster, or it was not known yet: its line finds out which.
	if err := s.l.settled(s); err != nil {
		return leasekit.Answer{}, err
	}
	if a, err := d.answerBehind(ctx, s); a.Granted || err != nil {
		return a, err
	}
	ctx = context.WithoutCancel(ctx) // nothing must be left
	refused := &lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: s.Resource}}
	if v, err := s.l.survey(ctx); err == nil {
		refused.Status = v.head
	}
	if _, err := d.remove(ctx, s); err != nil {
		return leasekit.Answer{}, err
	}
	return leasekit.Answer{}, refused
}

// answerBehind is the answer to a try for a permit. Where those in front of it have not taken their slots yet, it
// waits for them: permits may be left for it all the same.
func (d *driver) answerBehind(ctx context.Context, s *spot) (leasekit.Answer, error) {
	for end := d.b.clock() + d.b.cfg.timeout; ; {
		a, _, err := d.answer(s)
		if a.Granted || err != nil || s.mode.Limit() == 0 {
			return a, err
		}
		d.mu.Lock()
		i, _ := s.l.find(s.name, s.seq, false)
		free := s.name != "" && permitFree(s.l.queue[:i], s.mode.Limit())
		d.mu.Unlock()
		if !free || d.b.clock() >= end || !leasekit.Sleep(ctx, pauseForSlots) {
			return a, nil
		}
	}
}

// pauseForSlots is how often a try looks whether those in front of it have taken their slots.
const pauseForSlots = 2 * time.Millisecond

// wayOf finds out who is in the way of a try, without taking a place; nil: nobody.
// The server that is asked may lag behind the leader: that the lock is free is
// checked when a place was taken, and that it is taken is asked for again after a sync.
func (d *driver) wayOf(ctx context.Context, s *spot) (*survey, error) {
	inTheWay := func(nodes []node, downgraded bool) bool {
		if limit := s.mode.Limit(); limit > 0 {
			return !permitFree(nodes, limit)
		}
		j := blocker(nodes, len(nodes), s.mode == lock.Shared)
		return j > 0 || j == 0 && (!downgraded || s.mode != lock.Shared)
	}
	children, err := d.children(ctx, zksession.Children(s.l.path))
	if err != nil || !inTheWay(parseNodes(children), false) {
		return nil, err
	}
	v, err := s.l.survey(ctx)
	if err != nil || !inTheWay(v.nodes, v.downgraded) {
		return nil, err
	}
	if otherLimit(v.nodes, s.mode) {
		return nil, leasekit.OtherLimit(lock.Request{Mode: s.mode})
	}
	return v, nil
}

// children lists the queue of a lock, by the last of the calls.
func (d *driver) children(ctx context.Context, calls ...*zksession.Call) ([]string, error) {
	queue := calls[len(calls)-1]
	if err := d.ask(ctx, calls...); err != nil {
		return nil, err
	}
	if errors.Is(queue.Err, zksession.ErrNoNode) {
		return nil, nil
	}
	return queue.Children, queue.Err
}

// survey is who holds a lock and who stands in its queue, for people.
type survey struct {
	done chan struct{} // closed when the rest is set
	err  error

	nodes      []node
	holders    int         // the first of them
	downgraded bool        // the first one is a writer that lets others read
	head       lock.Status // holders, not all if there are many
}

// survey gives a survey that starts after the call. Those who ask while one is
// under way share the next one, so it goes on when the ctx of one of them ends.
func (l *line) survey(ctx context.Context) (*survey, error) {
	d := l.d
	d.mu.Lock()
	v := l.nextSurvey
	first := v == nil
	if first {
		if v = (&survey{done: make(chan struct{})}); l.surveyTurn == nil {
			l.surveyTurn = make(chan struct{}, 1)
		}
		l.nextSurvey = v
	}
	d.mu.Unlock()
	if first {
		l.surveyTurn <- struct{}{}
		d.mu.Lock()
		l.nextSurvey = nil
		d.mu.Unlock()
		v.err = d.look(context.WithoutCancel(ctx), l.resource, l.path, v)
		close(v.done)
		<-l.surveyTurn
	}
	<-v.done
	return v, v.err
}

func (d *driver) look(ctx context.Context, r lock.Resource, path string, v *survey) error {
	children, err := d.children(ctx, zksession.Sync(path), zksession.Children(path))
	if err != nil {
		return err
	}
	if v.nodes, err = d.withoutOver(ctx, r, path, parseNodes(children)); err != nil {
		return err
	}
	n := holders(v.nodes, true) // if the first was downgraded; else one
	reading := d.b.newReading(r, path, v.nodes[:min(n, maxHead)])
	if err := reading.read(ctx, d.leaseNode); err != nil {
		return err
	}
	v.head = reading.status(d.leaseNode)
	v.head.Waiters = nil
	v.downgraded = reading.downgraded()
	v.holders = holders(v.nodes, v.downgraded)
	return nil
}
