package embedded

import "time"

// suspendCheck is how often the clock is looked at while something can end by
// itself. Go's timers stand still while the machine is suspended and the clock
// of the leases does not, so a timer for the whole time left could be late by
// the length of the suspend.
const suspendCheck = time.Second

// expire ends what is over even when nobody calls. It runs from New to Close.
func (s *Store) expire() {
	defer close(s.stopped)
	timer := time.NewTimer(suspendCheck)
	defer timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.rearm:
		case <-timer.C:
		}
		s.mu.Lock()
		now := s.clock()
		if now >= s.due {
			s.sweep(now)
		}
		due := s.due
		s.mu.Unlock()
		if due == never {
			timer.Stop()
		} else {
			timer.Reset(min(due-now, suspendCheck))
		}
	}
}

// dueBy makes sure that the sweep comes by that moment.
func (s *Store) dueBy(t time.Duration) {
	if t >= s.due {
		return
	}
	s.due = t
	select {
	case s.rearm <- struct{}{}:
	default: // a signal is under way already
	}
}

// sweep ends the leases and the graces that are over, and finds the next one.
// A heartbeat does not move due, so a sweep may find nothing to do.
func (s *Store) sweep(now time.Duration) {
	s.due = never
	for l := range s.leases {
		if now >= l.deadline {
			s.drop(l)
		} else {
			s.due = min(s.due, l.deadline)
		}
	}
	for e, end := range s.revoked {
		if now >= end {
			s.remove(e)
		} else {
			s.due = min(s.due, end)
		}
	}
}
