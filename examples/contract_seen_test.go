package examples

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

// What a case looks at, and what it does to the sidecars.

func (r *contractRun) look(s contractStep) error {
	l := r.holds[s.Hold].lock
	var wrong []error
	expect := func(what string, is, want any) {
		if is != want {
			wrong = append(wrong, fmt.Errorf("%s: %v", what, is))
		}
	}
	if s.Lost != nil {
		expect("lost", errors.Is(l.Err(), client.ErrLockLost), *s.Lost)
	}
	if v := l.ValidFor().Seconds() * 1000; s.ValidFor != nil && (v < s.ValidFor[0] || v > s.ValidFor[1]) {
		wrong = append(wrong, fmt.Errorf("valid for %f ms", v))
	}
	if s.Mode != "" {
		expect("mode", l.Mode().String(), s.Mode)
	}
	if s.Guard != nil {
		expect("guard", l.Guard != nil, *s.Guard)
	}
	if s.Parts != nil {
		var names []string
		for _, p := range l.Parts {
			names = append(names, p.Resource)
			expect("fence of "+p.Resource, p.Fence > 0, true)
		}
		expect("parts", strings.Join(names, ", "), strings.Join(*s.Parts, ", "))
	}
	if s.Slot != nil {
		slot := "null"
		if l.Mode() == client.Permit {
			slot = fmt.Sprint(l.Slot)
		}
		expect("slot", slot, string(s.Slot))
	}
	if s.Attempt != nil {
		expect("attempt", l.Attempt, *s.Attempt)
	}
	if s.Previous != nil {
		wrong = append(wrong, lookPrevious(l.Previous, s.Previous))
	}
	return errors.Join(wrong...)
}

func lookPrevious(is *pb.Outcome, want json.RawMessage) error {
	type outcome struct {
		State, Note string
		Attempt     int32
	}
	var wanted *outcome
	if err := json.Unmarshal(want, &wanted); err != nil {
		return err
	}
	switch {
	case (is == nil) != (wanted == nil):
		return fmt.Errorf("previous: %v", is)
	case is != nil && *wanted != outcome{is.GetState().String(), is.GetNote(), is.GetAttempt()}:
		return fmt.Errorf("previous: %v", is)
	}
	return nil
}

func (r *contractRun) slots(s contractStep) error {
	var slots []int
	for _, name := range s.Holds {
		slots = append(slots, r.holds[name].lock.Slot)
	}
	if slices.Sort(slots); !slices.Equal(slots, s.Are) {
		return fmt.Errorf("slots %v", slots)
	}
	return nil
}

func (r *contractRun) lost(s contractStep) error {
	h := r.holds[s.Hold]
	if h.at.IsZero() {
		select {
		case h.at = <-h.lost:
		case <-time.After(ms(s.Within)):
			return errors.New("it was not told in time")
		}
	}
	var lost *client.LostError
	switch err := h.lock.Err(); {
	case !errors.As(err, &lost):
		return fmt.Errorf("it is not lost: %w", err)
	case lost.Reason != s.Reason:
		return fmt.Errorf("its reason is %s", lost.Reason)
	case h.lock.ValidFor() != 0:
		return fmt.Errorf("it is valid for %s", h.lock.ValidFor())
	}
	return nil
}

func (r *contractRun) rising(s contractStep) error {
	last := int64(0)
	for _, name := range s.Holds {
		if f := r.holds[name].lock.Fence; f > last {
			last = f
		} else {
			return fmt.Errorf("fence %d of %s after %d", f, name, last)
		}
	}
	return nil
}

func (r *contractRun) order(s contractStep) error {
	moment := func(of string) time.Time {
		if name, ok := strings.CutPrefix(of, "lost:"); ok {
			return r.holds[name].at
		}
		return r.calls[strings.TrimPrefix(of, "got:")].at
	}
	first, then := moment(s.First), moment(s.Then)
	if first.IsZero() || !first.Before(then) {
		return fmt.Errorf("at %s and %s", first, then)
	}
	return nil
}

func (r *contractRun) queue(s contractStep) error {
	var holders []*pb.Holder
	var waiters int
	for end := time.Now().Add(ms(s.Within)); ; time.Sleep(5 * time.Millisecond) {
		l, err := r.sidecars[s.Sidecar].client.Get(r.ctx, *s.Resource)
		if err != nil {
			return err
		}
		holders = slices.DeleteFunc(l.GetHolders(), (*pb.Holder).GetParked)
		if waiters = len(l.GetWaiters()); len(holders) == s.Holders && waiters == s.Waiters {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d holders and %d waiters", len(holders), waiters)
		}
	}
	for i, want := range s.Owners {
		if is := holders[i].GetOwner(); is != want && (want != "*" || is == "") {
			return fmt.Errorf("holder %d has the owner %q", i, is)
		}
	}
	return nil
}

func (r *contractRun) withheld(s contractStep) error {
	for end := time.Now().Add(ms(s.Within)); r.relays[s.Relay].lines() < s.Lines; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("it has withheld %d lines", r.relays[s.Relay].lines())
		}
	}
	return nil
}

func (r *contractRun) force(s contractStep) error {
	c := r.sidecars[s.Sidecar].client
	go func() { _, _ = c.ForceRelease(r.ctx, *s.Resource, "", ms(s.Grace)) }() // what it does is seen elsewhere
	return nil
}

func (r *contractRun) freeze(s contractStep) error {
	p := r.sidecars[s.Sidecar]
	p.signal(syscall.SIGSTOP)
	eventually(r.t, "it has stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return err == nil && strings.HasPrefix(string(text[strings.LastIndex(string(text), ") ")+2:]), "T")
	})
	return nil
}

func (r *contractRun) thaw(s contractStep) error {
	r.sidecars[s.Sidecar].signal(syscall.SIGCONT)
	return nil
}

// kill waits until the sessions have seen it, as an app does that opens them by itself.
func (r *contractRun) kill(s contractStep) error {
	r.sidecars[s.Sidecar].signal(syscall.SIGKILL)
	r.sidecars[s.Sidecar].wait()
	return r.over(s.Sidecar)
}

func (r *contractRun) over(sidecar string) error {
	for name, a := range r.apps {
		if a.at != sidecar {
			continue
		}
		select {
		case <-a.session.Done():
		case <-time.After(patience):
			return fmt.Errorf("the session of %s goes on", name)
		}
	}
	return nil
}

func (r *contractRun) terminate(s contractStep) error {
	r.sidecars[s.Sidecar].signal(syscall.SIGTERM)
	return nil
}

func (r *contractRun) ended(s contractStep) error {
	r.sidecars[s.Sidecar].wait()
	return r.over(s.Sidecar)
}

func (r *contractRun) doStart(s contractStep) error {
	r.start(s.Sidecar)
	return nil
}

// stop stops this process. With a hold, the app asks about that again and again meanwhile.
func (r *contractRun) stop(s contractStep) error {
	pid := os.Getpid()
	script := fmt.Sprintf("sleep 0.2; kill -STOP %d; sleep %f; kill -CONT %d", pid, ms(s.Time).Seconds(), pid)
	stopped := make(chan error, 1)
	go func() { stopped <- exec.CommandContext(r.ctx, "sh", "-c", script).Run() }()
	if s.Hold == "" {
		return <-stopped
	}
	for l := r.holds[s.Hold].lock; ; {
		if err := l.Err(); err != nil {
			return errors.Join(err, <-stopped)
		}
		select {
		case err := <-stopped:
			return err
		default:
		}
	}
}

func (r *contractRun) pause(s contractStep) error {
	time.Sleep(ms(s.Time))
	return nil
}
