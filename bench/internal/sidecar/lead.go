package sidecar

import (
	"fmt"
	"strconv"

	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// Candidate is a locksidecar lead.
type Candidate struct{ *proc.Process }

// Lead starts a candidate at this sidecar, whose command prints its pid when it leads.
func (b *Binary) Lead(s *Sidecar, name string) (Candidate, error) {
	p, err := proc.Start(b.path, "lead", "--socket", s.Socket, name, "--", "sh", "-c", "echo $$; exec sleep 1000")
	return Candidate{p}, err
}

// Leads returns when it leads: the pid of its command.
func (c Candidate) Leads() (pid int, err error) {
	line, err := c.Line()
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(line); err != nil {
		return 0, fmt.Errorf("read the pid of a leader: %w", err)
	}
	return pid, nil
}
