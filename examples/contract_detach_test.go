package examples

import (
	"errors"
	"fmt"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// What a case does with detached locks.

func (r *contractRun) detach(s contractStep) error {
	l := r.holds[s.Hold].lock
	d, err := l.Detach(r.ctx, ms(s.TTL))
	if err != nil {
		return err
	}
	r.handles[s.Handle] = d
	return detachedAs(d, &pb.DetachedHold{Handle: d.GetHandle(), Resource: l.Resource, Mode: l.Mode(), Fence: l.Fence}, ms(s.TTL))
}

// detachedAs compares what is detached with what it must be.
func detachedAs(is, want *pb.DetachedHold, ttl time.Duration) error {
	var wrong []error
	if is.GetHandle() == "" || is.GetHandle() != want.GetHandle() || is.GetResource() != want.GetResource() ||
		is.GetMode() != want.GetMode() || is.GetFence() != want.GetFence() {
		wrong = append(wrong, fmt.Errorf("detached is %v, and not %v", is, want))
	}
	if left := is.GetValidFor().AsDuration(); left <= 0 || left > ttl {
		wrong = append(wrong, fmt.Errorf("its time is over in %s", left))
	}
	return errors.Join(wrong...)
}

func (r *contractRun) attach(s contractStep) error {
	a := r.apps[s.Client]
	call := &contractCall{}
	call.lock, call.err = a.session.Attach(r.ctx, r.handles[s.Handle].GetHandle())
	return r.granted(s, call)
}

func (r *contractRun) extendHandle(s contractStep) error {
	before := r.handles[s.Handle]
	d, err := r.apps[s.Client].client.ExtendHandle(r.ctx, before.GetHandle(), ms(s.TTL))
	if err != nil {
		return err
	}
	return detachedAs(d, before, ms(s.TTL))
}

func (r *contractRun) releaseHandle(s contractStep) error {
	return r.apps[s.Client].client.ReleaseHandle(r.ctx, r.handles[s.Handle].GetHandle())
}

func (r *contractRun) same(s contractStep) error {
	want := r.holds[s.Holds[0]].lock.Fence
	for _, name := range s.Holds {
		if is := r.holds[name].lock.Fence; is != want {
			return fmt.Errorf("fence %d of %s, and %d of %s", is, name, want, s.Holds[0])
		}
	}
	return nil
}
