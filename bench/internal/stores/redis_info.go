package stores

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// info asks the server, and counts that it was asked.
func (s *redisStore) info(ctx context.Context, section string) (string, error) {
	s.infos.Add(1)
	return s.client.Info(ctx, section).Result()
}

// Memory implements measure.Store: what Redis has allocated.
func (s *redisStore) Memory(ctx context.Context) (float64, error) {
	text, err := s.info(ctx, "memory")
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its memory: %w", err)
	}
	return redisNumber(redisFields(text)["used_memory"])
}

// CPU implements measure.Store.
func (s *redisStore) CPU(ctx context.Context) (float64, error) {
	text, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its processor time: %w", err)
	}
	used := 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := redisNumber(redisFields(text)[name])
		if err != nil {
			return 0, err
		}
		used += seconds * 1e6
	}
	return used, nil
}

// Count implements measure.Store: a script is one request, and its steps are the
// commands that it calls.
func (s *redisStore) Count(ctx context.Context) (measure.Count, error) {
	ours := s.infos.Load()
	text, err := s.info(ctx, "commandstats")
	if err != nil {
		return measure.Count{}, fmt.Errorf("ask Redis for its counters: %w", err)
	}
	var c measure.Count
	for name, value := range redisFields(text) {
		name, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		n, err := redisNumber(calls)
		if err != nil {
			return measure.Count{}, err
		}
		if name == "info" { // some of that is us
			n -= float64(ours)
		}
		c.Steps += n
		if isRequest(name) {
			c.Requests += n
		}
	}
	return c, nil
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

// redisFields takes apart lines of the form name:value.
func redisFields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

func redisNumber(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("read a number of Redis: %w", err)
	}
	return f, nil
}
