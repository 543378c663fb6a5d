package sidecar

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is what the process has, in bytes.
type Memory struct {
	RSS       float64 // resident, with the pages of its program file
	Anonymous float64 // resident, its own: heap, stacks, the runtime's tables
	Heap      float64 // allocated in Go's heap, live or not collected yet
}

// Memory looks at the process from outside first: to ask it changes it.
func (s *Sidecar) Memory(ctx context.Context) (Memory, error) {
	path := fmt.Sprintf("/proc/%d/status", s.PID())
	status, err := os.ReadFile(path) //nolint:gosec // a path of our own
	if err != nil {
		return Memory{}, fmt.Errorf("look at the sidecar's memory: %w", err)
	}
	metrics, err := s.get(ctx, "/metrics")
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for _, f := range []struct {
		text, name string
		unit       float64
		to         *float64
	}{
		{string(status), "VmRSS:", 1 << 10, &m.RSS},
		{string(status), "RssAnon:", 1 << 10, &m.Anonymous},
		{metrics, "go_memstats_heap_alloc_bytes", 1, &m.Heap},
	} {
		v, err := field(f.text, f.name)
		if err != nil {
			return Memory{}, err
		}
		*f.to = v * f.unit
	}
	return m, nil
}

// Sent is what the sidecar has counted so far.
type Sent struct {
	Requests     float64 // to the store, of all kinds
	BeatRequests float64 // those of them that renew the lease
	CleanUps     float64 // those that clear away what others left, now and then
	Heartbeats   float64 // how often the lease was to be renewed
}

// Sent reads the sidecar's own counters. heartbeat is the command by which
// these know a renewal of the lease.
func (s *Sidecar) Sent(ctx context.Context, heartbeat string) (Sent, error) {
	metrics, err := s.get(ctx, "/metrics")
	if err != nil {
		return Sent{}, err
	}
	var n Sent
	if n.Requests, err = sum(metrics, "locksidecar_store_command_seconds_count{"); err != nil {
		return Sent{}, err
	}
	if n.BeatRequests, err = sum(metrics, `locksidecar_store_command_seconds_count{command="`+heartbeat+`"`); err != nil {
		return Sent{}, err
	}
	if n.CleanUps, err = sum(metrics, `locksidecar_store_command_seconds_count{command="reap"`); err != nil {
		return Sent{}, err
	}
	n.Heartbeats, err = sum(metrics, "locksidecar_heartbeats_total{")
	return n, err
}

// sum adds the numbers of all lines that begin so.
func sum(text, prefix string) (float64, error) {
	var total float64
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, prefix) || len(words) < 2 {
			continue
		}
		v, err := strconv.ParseFloat(words[len(words)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", prefix, err)
		}
		total += v
	}
	return total, nil
}

// field is the number after the name at the beginning of a line.
func field(text, name string) (float64, error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != name {
			continue
		}
		v, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		return v, nil
	}
	return 0, fmt.Errorf("the sidecar does not tell %s", name)
}
