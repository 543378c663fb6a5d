package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
)

const leadName = "bench/lead"

// lead measures how soon the next one leads when the process of the leader is killed: from
// just before the signal until the command of the candidate at the other sidecar runs.
func (s *section) lead(ctx context.Context) (err error) {
	var sides [2]*sidecar.Sidecar
	for i := range sides {
		if sides[i], err = s.sidecar(ctx, fmt.Sprint("lead-", i)); err != nil {
			return err
		}
		defer closeAfter(&err, sides[i].Close)
	}
	eye, err := sides[0].Open(ctx)
	if err != nil {
		return err
	}
	defer closeAfter(&err, eye.Close)
	var candidates [2]sidecar.Candidate
	defer func() {
		for _, c := range candidates {
			if c.Process != nil {
				err = errors.Join(err, c.Stop(stopGrace))
			}
		}
	}()
	s.progress("killing %d leaders", s.kills)
	if candidates[0], err = s.binary.Lead(sides[0], leadName); err != nil {
		return err
	}
	pid, err := candidates[0].Leads()
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range s.kills {
		leader, next := i%2, (i+1)%2
		if candidates[next], err = s.binary.Lead(sides[next], leadName); err != nil {
			return err
		}
		if err := untilQueued(ctx, eye, leadName); err != nil {
			return err
		}
		killed := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill the leader: %w", err)
		}
		if pid, err = candidates[next].Leads(); err != nil {
			return err
		}
		took = append(took, time.Since(killed))
		candidates[leader].Wait() // it ends with the status of its command
		candidates[leader].Process = nil
	}
	k := &report.Kill{Repeats: s.kills, Grant: measure.TimesOf(took)}
	s.report.Lead = k
	s.aim(report.AtMost("kill -9 of the leader's process to the next leader at work (p99)", "ms", k.Grant.P99/1000, s.plan.leadMS))
	return nil
}

// stopGrace is for a candidate, and what it has started, to end.
const stopGrace = 5 * time.Second
