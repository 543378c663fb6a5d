package peers

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// MemoryUsed is what Redis has allocated, in bytes.
func MemoryUsed(ctx context.Context, c *redis.Client) (float64, error) {
	text, err := c.Info(ctx, "memory").Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its memory: %w", err)
	}
	return number(fields(text)["used_memory"])
}

// CPUUsed is the processor time that Redis has used so far, in microseconds.
func CPUUsed(ctx context.Context, c *redis.Client) (float64, error) {
	text, err := c.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its processor time: %w", err)
	}
	used := 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := number(fields(text)[name])
		if err != nil {
			return 0, err
		}
		used += seconds * 1e6
	}
	return used, nil
}

// Commands counts for a while what reaches Redis beside this: requests that
// were sent, a script being one, and all commands with those in scripts, per
// second.
func Commands(ctx context.Context, c *redis.Client, d time.Duration) (sent, total float64, err error) {
	before, err := commandStats(ctx, c)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	after, err := commandStats(ctx, c)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(began).Seconds()
	inside := 0.0
	for name, n := range after {
		n -= before[name]
		if name == "info" { // that is us
			continue
		}
		total += n
		if !isRequest(name) {
			inside += n
		}
	}
	return (total - inside) / took, total / took, nil
}

// isRequest reports whether sidecars send the command by itself. Everything
// else that they need is done in scripts.
func isRequest(command string) bool {
	name, _, _ := strings.Cut(command, "|")
	switch name {
	case "evalsha", "evalsha_ro", "eval", "eval_ro", "fcall", "fcall_ro", "script", "ping", "subscribe", "ssubscribe", "unsubscribe", "sunsubscribe", "hello", "client", "auth", "select":
		return true
	default:
		return false
	}
}

// commandStats are the calls of each command so far.
func commandStats(ctx context.Context, c *redis.Client) (map[string]float64, error) {
	text, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, fmt.Errorf("ask Redis for its counters: %w", err)
	}
	calls := map[string]float64{}
	for name, value := range fields(text) {
		name, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		if calls[name], err = number(n); err != nil {
			return nil, err
		}
	}
	return calls, nil
}

// fields takes apart lines of the form name:value.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

func number(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("read a number of Redis: %w", err)
	}
	return f, nil
}
