package examples

import (
	"errors"
	"fmt"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// leaderWatch is a watch of who leads. It is read in the background.
type leaderWatch struct {
	told chan *pb.Leader
	err  error // why it has ended; valid when told is closed
}

func (r *contractRun) leader(s contractStep) error {
	for end := time.Now().Add(ms(s.Within)); ; time.Sleep(5 * time.Millisecond) {
		l, err := r.apps[s.Client].client.Leader(r.ctx, *s.Resource)
		if err != nil {
			return err
		}
		if err := r.leads(s, l); err == nil || !time.Now().Before(end) {
			return err
		}
	}
}

// leads compares who leads with what the step says of it.
func (r *contractRun) leads(s contractStep, l *pb.Leader) error {
	somebody := s.Value != nil
	switch {
	case l.GetLeads() != somebody, (l.GetHolder() != nil) != somebody, somebody && l.GetValue() != *s.Value,
		s.Hold != "" && l.GetHolder().GetFence() != r.holds[s.Hold].lock.Fence,
		s.Candidates != nil && int(l.GetCandidates()) != *s.Candidates:
		return fmt.Errorf("it says %v", l)
	}
	return nil
}

func (r *contractRun) watchLeader(s contractStep) error {
	w := &leaderWatch{told: make(chan *pb.Leader)}
	r.watches[s.Watch] = w
	leaders := r.apps[s.Client].client.WatchLeader(r.ctx, *s.Resource, ms(s.Interval))
	go func() {
		defer close(w.told)
		for l, err := range leaders {
			if w.err = err; err != nil {
				return
			}
			select {
			case w.told <- l:
			case <-r.ctx.Done():
				return
			}
		}
	}()
	return nil
}

func (r *contractRun) told(s contractStep) error {
	late := time.After(ms(s.Within))
	last := errors.New("it says nothing")
	for last != nil {
		select {
		case l, ok := <-r.watches[s.Watch].told:
			if !ok {
				return r.watches[s.Watch].err
			}
			last = r.leads(s, l)
		case <-late:
			return fmt.Errorf("it does not say so in time: %w", last)
		}
	}
	return nil
}
