package session

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/lock"
)

// TestWhatTheLogTells of a sidecar whose store comes, is silent for a while, is silent
// for too long, and goes: each change once.
func TestWhatTheLogTells(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var out bytes.Buffer
		sc := e.build(func(o *Options) {
			o.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &out, DisableTime: true})
		})
		until := func(what string, is func(Info) bool) {
			t.Helper()
			for began := e.now(); !is(sc.Info()); time.Sleep(10 * time.Millisecond) {
				if e.now()-began > time.Minute {
					t.Fatalf("not %s in a minute: %+v", what, sc.Info())
				}
			}
		}
		ready := func(i Info) bool { return i.Ready }
		jeopardy := func(i Info) bool { return i.Jeopardy }
		sc.way.on(down, opOpen)
		sc.run()
		time.Sleep(5 * time.Second)
		sc.way.on(nil, opOpen)
		until("ready", ready)
		sc.way.on(down, opHeartbeat)
		until("in jeopardy", jeopardy)
		sc.way.on(nil, opHeartbeat)
		until("ready again", ready)
		s := sc.session()
		must(t, s, exclusive)
		sc.way.on(down, opHeartbeat, opClose)
		until("in jeopardy again", jeopardy)
		lease := sc.Info().LeaseID
		until("on another lease", func(i Info) bool { return i.LeaseID != "" && i.LeaseID != lease })
		sc.way.on(nil, opHeartbeat)
		time.Sleep(5 * time.Second)
		must(t, s, named("other"))
		synctest.Wait()
		if err := sc.stop(); err != nil {
			t.Error(err)
		}
		var got []string
		debug := map[string]int{}
		for line := range strings.Lines(out.String()) {
			level, text, _ := strings.Cut(strings.TrimSpace(line), "]")
			text, _, _ = strings.Cut(strings.TrimSpace(text), ": lease=")
			text, _, _ = strings.Cut(text, ": error=")
			text, _, _ = strings.Cut(text, ": session=")
			text, _, _ = strings.Cut(text, ": holds=")
			if level == "[DEBUG" {
				debug[text]++
				continue
			}
			if strings.HasPrefix(text, "stopping although") {
				continue // the end of its grace lets go in the same moment
			}
			got = append(got, level[1:]+" "+text)
		}
		want := []string{
			"WARN open lease: will keep trying",
			"INFO lease opened",
			"WARN the store does not answer to the heartbeat",
			"INFO the store answers again",
			"WARN the store does not answer to the heartbeat",
			"ERROR the lease is lost",
			"INFO lease opened",
			"WARN close lease: it ends by its TTL",
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log has\n%q, want\n%q; all of it:\n%s", got, want, &out)
		}
		for text, most := range map[string]int{"open lease: will keep trying": 20, "lock lost": 2, "close lost lease": 1} {
			if n := debug[text]; n == 0 || n > most {
				t.Errorf("%d lines %q, want one to %d", n, text, most)
			}
		}
	})
}

// notThere: the store does not know the hold.
func notThere(ctx context.Context, do func(context.Context) error) error {
	if err := do(ctx); err != nil {
		return err
	}
	return fmt.Errorf("release: %w", lock.ErrNotHolder)
}

// TestALossInAnAnswerIsCounted: the store has lost a hold, and says so to its release.
func TestALossInAnAnswerIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(notThere, opRelease)
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, StoreLost)
		sc.way.on(nil, opRelease)
		sc.obs.mu.Lock()
		defer sc.obs.mu.Unlock()
		if !slices.Equal(sc.obs.lost, []LostReason{StoreLost}) {
			t.Errorf("counted %v", sc.obs.lost)
		}
	})
}
