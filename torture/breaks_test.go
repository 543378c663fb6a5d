package torture

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lawBreak is a sidecar that breaks a law on purpose: what is changed in its source,
// and what the torture must find then.
type lawBreak struct {
	name    string
	law     string // the name of the law, or the promise, in the model
	plan    string
	edits   []edit
	options string // more of the store's URL
	finds   string // part of what is found
}

// edit puts one text in place of another, which stands in the file once.
type edit struct{ file, old, new string }

// What is found.
const (
	two     = "two had "
	notAll  = "not everybody has got every lock"
	fallen  = "the fence has "
	noOrder = "is not that of a lock"
)

var lawBreaks = []lawBreak{
	{
		name: "WritersBesideReaders", law: "promise_1_exclusion", plan: "Embedded", finds: two,
		edits: []edit{{
			"backends/queue/queue.go",
			"return q.count == 0 || q.first.room == r && q.count < r.size()",
			"return q.count == 0 || q.first.room == Unlimited",
		}},
	},
	{
		name: "HoldersAreIgnored", law: "promise_1_exclusion", plan: "Redis", finds: noOrder,
		edits: []edit{{
			"backends/redislock/lua/lib.lua",
			"if held ~= mode or mode == 'X' then return false end",
			"if held ~= mode and mode ~= 'S' or mode == 'X' then return false end",
		}},
	},
	{
		name: "PermitsHaveOneSlot", law: "promise_1_exclusion", plan: "Embedded", finds: two,
		edits: []edit{{"backends/queue/slots.go", "return 64*i + bits.TrailingZeros64(^s[i])", "return 64*i + 0*bits.TrailingZeros64(^s[i])"}},
	},
	{
		name: "FencesFall", law: "promise_2_fences_grow", plan: "Embedded", finds: fallen,
		edits: []edit{{
			"backends/embedded/store.go",
			"s.number = max(s.number+1, s.wallAtZero+now.Microseconds())",
			"if s.number--; s.number < 0 { s.number = s.wallAtZero + now.Microseconds() }",
		}},
	},
	{
		name: "FencesByTheClock", law: "promise_2_fences_grow", plan: "RedisClock", finds: fallen,
		edits: []edit{
			{"backends/redislock/lua/acquire_fast.lua", "if last and tonumber(last) >= now then", "if false then"},
			{"backends/redislock/lua/lib.lua", "math.max(now, last + 1)", "now"},
		},
	},
	{
		name: "NoticeIsDropped", law: "promise_3_early_notice", plan: "Embedded", finds: two,
		edits: []edit{{"session/lease.go", "if s != nil {", "if s != nil && e.Kind != lock.Revoked {"}},
	},
	{
		name: "DeadlineIsTooLate", law: "promise_3_early_notice", plan: "Redis", finds: two,
		edits: []edit{{"heartbeat/keeper.go", "next := int64(sent + k.o.TTL - k.o.Margin)", "next := int64(sent + 2*k.o.TTL)"}},
	},
	{
		name: "ForcersClock", law: "law_2_grace_from_when_it_was_known", plan: "Redis", finds: two,
		edits: []edit{{
			"backends/redislock/lua/force.lua",
			"' ' .. string.format('%.0f', over) .. ' ' .. ARGV[4]",
			"' ' .. string.format('%.0f', now + grace) .. ' ' .. ARGV[4]",
		}},
	},
	{
		name: "ForcersClockInEtcd", law: "law_2_grace_from_when_it_was_known", plan: "Etcd", finds: two,
		edits: []edit{{"backends/caslock/state.go", "\t\t\tf.Grace = grace\n", "\t\t\tf.Grace, f.Known = grace, grace\n"}},
	},
	{
		name: "ANewServerGrantsAtOnce", law: "law_4_a_new_server_is_a_stranger", plan: "Redis", finds: two,
		options: "&restart-grace=0s",
	},
	{
		name: "NobodyHearsOfAShardThatIsAway", law: "promise_3_early_notice", plan: "Shards", finds: two,
		edits: []edit{{"backends/shards/beat.go", "l.losses = append(l.losses, x)", "_ = x"}},
	},
	{
		name: "AShardIsNeverGivenUp", law: "promise_3_early_notice", plan: "Shards", finds: two,
		edits: []edit{
			{"backends/shards/beat.go", "case len(failed) > 0:", "case len(failed) == len(l.seats):"},
			{"backends/shards/beat.go", "return ttl * 7 / 10", "return ttl * 70"},
		},
	},
	{
		name: "MinHoldIsIgnored", law: "promise_14_min_hold", plan: "Embedded", finds: two,
		edits: []edit{{"backends/embedded/store.go", "v.until = now + v.minHold", "v.until = now"}},
	},
	{
		name: "MinHoldEndsWithTheRelease", law: "promise_14_min_hold", plan: "Redis", finds: two,
		edits: []edit{{"backends/redislock/lua/lib.lua", "  if own <= now then return false end\n  local member", "  if own > 0 then return false end\n  local member"}},
	},
	{
		name: "DetachedIsFreedEarly", law: "promise_15_detached", plan: "Embedded", finds: two,
		edits: []edit{{"backends/embedded/detached.go", "key, now+ttl, false", "key, now+ttl/3, false"}},
	},
	{
		name: "DetachedIsFreedEarlyInRedis", law: "promise_15_detached", plan: "Redis", finds: two,
		edits: []edit{{"backends/redislock/lua/detach.lua", "string.format('%.0f', now + time))", "string.format('%.0f', now + time / 3))"}},
	},
	{
		name: "TheHandleBeforeIsKept", law: "promise_15_detached", plan: "Embedded", finds: "which was detached by",
		edits: []edit{{"backends/embedded/detached.go", "\t\ts.forgetHandle(e)\n\t\te.Value.key", "\t\te.Value.key"}},
	},
	{
		name: "AllHereHaveItTogether", law: "promise_1_exclusion", plan: "Embedded", finds: two,
		edits: []edit{
			{"arbiter/acquire.go", "c.state == parked || c.state == holding && c.mode == lock.Shared)", "c.state == parked || c.state == holding)"},
			{"arbiter/acquire.go", "case c.state == holding && c.mode == lock.Shared:", "case c.state == holding:"},
		},
	},
	{
		name: "HandedOnWithOneFence", law: "promise_2_fences_grow", plan: "Embedded", finds: fallen,
		edits: []edit{{"arbiter/cohort.go", "m.fence += lock.Fence(c.count)", "m.fence += 0"}},
	},
	{
		name: "ACancelledWaitStays", law: "promise_9_nothing_is_left", plan: "Redis", finds: notAll,
		edits: []edit{{"backends/leasekit/acquire.go", "w, err := l.withdraw(limit, e.Ref, &lock.HeldError{Cause: cause, Status: lock.Status{Resource: e.Resource}})", "w, err := Withdrawn{}, limit.Err()"}},
	},
	{
		name: "OfSeveralOnlyTheLastIsKept", law: "promise_1_exclusion", plan: "Redis", finds: two,
		edits: []edit{{"session/ledger/group.go", "\tg.taken = append(g.taken, h)\n", "\tg.taken = append(g.taken, h)\n\tl.clean(h, false)\n"}},
	},
	{
		name: "TheRestOfSeveralIsFreedUntold", law: "promise_3_early_notice", plan: "Embedded", finds: two,
		edits: []edit{{"session/ledger/group.go", "l.lapse(p, reason, max(until, l.at.Now+l.o.LostGrace), true)\n\t\t}\n", "l.lapse(p, reason, l.at.Now, true)\n\t\t}\n"}, {"session/ledger/group.go", "\tl.tell(g.head, reason)\n", ""}},
	},
	{
		name: "WhoGivesUpKeepsSomeOfSeveral", law: "promise_9_nothing_is_left", plan: "Embedded", finds: notAll,
		edits: []edit{{"session/ledger/group.go", "\tl.untaken -= g.untaken()\n\tl.dropFollowers(g.head)\n", "\tl.untaken -= g.untaken()\n"}},
	},
	{
		name: "TheDeadKeepTheirLocks", law: "promise_8_no_free_lock_is_waited_for", plan: "Embedded", finds: notAll,
		edits: []edit{{"session/ledger/ledger.go", "\t\tl.unregister(h)\n\t\tl.clean(h, true)\n", "\t\tl.unregister(h)\n"}},
	},
}

// overlay writes the changed files of a break and gives the flags of go build.
func (b *lawBreak) overlay(t *testing.T) []string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	for _, e := range b.edits {
		path := filepath.Join(root, e.file)
		at := path
		if replace[path] != "" {
			at = replace[path]
		}
		text, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s has %d times, and not once: %s", e.file, n, e.old)
		}
		replace[path] = filepath.Join(dir, strings.ReplaceAll(e.file, "/", "_"))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(replace) == 0 {
		return nil
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"-overlay", file}
}

// TestBreaksFit: what is to be changed is there, and each law has its name in the model.
func TestBreaksFit(t *testing.T) {
	var laws string
	models, err := filepath.Glob("../model/*.pml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		text, err := os.ReadFile(m)
		if err != nil {
			t.Fatal(err)
		}
		laws += string(text)
	}
	for _, b := range lawBreaks {
		if flags := b.overlay(t); flags == nil && b.options == "" {
			t.Errorf("%s breaks nothing", b.name)
		}
		if !strings.Contains(laws, b.law) {
			t.Errorf("%s: the model has no %s", b.name, b.law)
		}
	}
}

// TestBreaksAreFound: a sidecar that breaks a law is found out.
func TestBreaksAreFound(t *testing.T) {
	if !*long {
		t.Skip("takes minutes; only with -long, as in make torture-breaks")
	}
	for _, b := range lawBreaks {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			broken := filepath.Join(t.TempDir(), "locksidecar")
			if err := build(broken, b.overlay(t)...); err != nil {
				t.Fatal(err)
			}
			p := plans[slices.IndexFunc(plans, func(p plan) bool { return p.name == b.plan })]
			p.options += b.options
			w := newWorld(t, p, broken)
			began := time.Now()
			w.torture(max(1, *seed), 10*roundLength)
			w.gaveUp()
			for _, found := range w.found {
				if strings.Contains(found, b.finds) {
					t.Logf("%s is broken, which was found after %s: %.600s", b.law, time.Since(began).Round(time.Second), found)
					return
				}
			}
			t.Errorf("%s is broken, and %q was not found, but %q", b.law, b.finds, w.found)
		})
	}
}
