package model

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// required says that the tests fail where spin is missing, instead of being skipped.
const required = "LOCKSIDECAR_TEST_SPIN"

// patience is for one check, on a machine that has other things to do.
const patience = 5 * time.Minute

// models are the files, each with what is taken out of it and the law that is found
// broken then.
var models = map[string]map[string]string{
	"lease.pml": {
		"BREAK_NO_MARGIN":                    "promise_3_early_notice",
		"BREAK_COUNTED_FROM_THE_ANSWER":      "promise_3_early_notice",
		"BREAK_GRANT_GOES_TO_THE_NEXT_LEASE": "promise_3_early_notice",
		"BREAK_DEAD_LEASE_IS_RENEWED":        "law_3_death_is_final",
		"BREAK_DEATH_IS_FORGOTTEN":           "law_3_death_is_final",
		"BREAK_DURATIONS_TRAVEL":             "law_5_deadlines_are_moments",
	},
	"force.pml": {
		"BREAK_BEATS_TELL_NOTHING":             "law_1_the_heartbeat_is_the_truth",
		"BREAK_NEWS_ARE_TOLD_ONCE":             "law_1_the_heartbeat_is_the_truth",
		"BREAK_NEWS_AFTER_THE_RENEWAL":         "law_1_the_heartbeat_is_the_truth",
		"BREAK_GONE_IS_ONLY_COUNTED":           "law_1_the_heartbeat_is_the_truth",
		"BREAK_FORCERS_CLOCK":                  "law_2_grace_from_when_it_was_known",
		"BREAK_ACKNOWLEDGED_BEFORE_IT_IS_TOLD": "promise_3_early_notice",
	},
	"failover.pml": {
		"BREAK_ANY_SERVER_IS_TRUSTED":             "law_4_a_new_server_is_a_stranger|law_4_strays_are_given_up",
		"BREAK_A_SERVER_THAT_WAS_SEEN_IS_TRUSTED": "law_4_a_new_server_is_a_stranger|law_4_strays_are_given_up",
		"BREAK_A_GRANT_OUTLIVES_A_COMPARISON":     "law_4_a_new_server_is_a_stranger",
		"BREAK_STRAYS_ARE_KEPT":                   "law_4_strays_are_given_up",
		"BREAK_A_NEW_SERVER_GRANTS_AT_ONCE":       "promise_1_exclusion",
	},
	"retry.pml": {
		"BREAK_NO_TOMBSTONE":                   "promise_9_nothing_is_left",
		"BREAK_SHORT_TOMBSTONE":                "promise_9_nothing_is_left",
		"BREAK_A_FORCED_HOLD_IS_NOT_WITHDRAWN": "promise_9_nothing_is_left",
		"BREAK_A_RETRY_IS_ANOTHER_REQUEST":     "promise_9_a_retry_finds_its_grant",
		"BREAK_CALLS_OVERLAP":                  "law_6_one_call_at_a_time",
		"BREAK_ASKED_WHILE_IT_IS_GIVEN_UP":     "promise_1_a_hold_stays",
	},
	"queue.pml": {
		"BREAK_HOLDERS_ARE_IGNORED":       "promise_1_exclusion",
		"BREAK_FENCES_BY_THE_CLOCK":       "promise_2_fences_grow",
		"BREAK_FENCES_BY_THE_COUNTER":     "promise_2_fences_grow",
		"BREAK_READERS_PASS_WRITERS":      "promise_7_first_come_first_served",
		"BREAK_ONE_IS_GRANTED":            "promise_7_readers_together",
		"BREAK_A_DOWNGRADE_GRANTS_NOBODY": "promise_7_readers_together",
		"BREAK_NO_HAND_OVER":              "promise_8_no_free_lock_is_waited_for",
		"BREAK_THE_DEAD_BLOCK":            "promise_8_no_free_lock_is_waited_for",
	},
	"kept.pml": {
		"BREAK_A_RELEASE_ENDS_A_MIN_HOLD":  "promise_14_min_hold",
		"BREAK_A_DEAD_LEASE_ENDS_IT":       "promise_14_min_hold|promise_15_detached",
		"BREAK_FREED_WHILE_IT_IS_ATTACHED": "promise_15_detached",
		"BREAK_ENDED_BY_WHO_HAD_IT":        "promise_15_detached",
		"BREAK_A_LATE_COPY_ENDS_IT":        "promise_15_detached",
		"BREAK_A_TAKEOVER_IS_FORGOTTEN":    "promise_15_a_takeover_stays",
		"BREAK_A_HANDLE_OUTLIVES_ITS_HOLD": "promise_1_exclusion",
	},
	"told.pml": {
		"BREAK_A_LOSS_IS_TOLD_ONCE":        "law_7_a_loss_is_kept",
		"BREAK_THE_LOG_COMES_FIRST":        "law_8_nothing_blocks_the_news",
		"BREAK_ONE_READER_AFTER_THE_OTHER": "law_8_nothing_blocks_the_news",
	},
}

// otherWayRound are rules without which the search finds what is broken after a million states or more, and
// after some thousand when it lets the model's processes run in the other order.
var otherWayRound = []string{"BREAK_GRANT_GOES_TO_THE_NEXT_LEASE", "BREAK_ACKNOWLEDGED_BEFORE_IT_IS_TOLD"}

// TestModels: each law holds, and is found broken when a rule that it rests on is
// taken out.
func TestModels(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for _, program := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv(required) != "" {
				t.Fatalf("%s is missing, and %s is set: %v", program, required, err)
			}
			t.Skipf("%s is missing; scripts/test-deps installs it, or: apt-get install spin gcc libc6-dev", program)
		}
	}
	for file, breaks := range models {
		t.Run(strings.TrimSuffix(file, ".pml"), func(t *testing.T) {
			m := load(t, file)
			t.Run("holds", func(t *testing.T) {
				t.Parallel()
				for _, broken := range m.check(t, "") {
					t.Errorf("%s is broken", broken)
				}
			})
			for rule, law := range breaks {
				t.Run(rule, func(t *testing.T) {
					t.Parallel()
					broken := m.check(t, rule)
					if len(broken) == 0 {
						t.Fatalf("nothing is found broken, want %s", law)
					}
					for _, b := range broken {
						if !slices.Contains(strings.Split(law, "|"), b) {
							t.Errorf("%s is found broken, want %s", b, law)
						}
					}
				})
			}
		})
	}
}

// TestEachLawHasABreak: the table above names each rule that can be taken out, and
// each assertion is one that some of them breaks.
func TestEachLawHasABreak(t *testing.T) {
	files, err := filepath.Glob("*.pml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(models) {
		t.Errorf("the files are %v, and the table has %d", files, len(models))
	}
	for _, file := range files {
		m, broken := load(t, file), make(map[string]bool)
		for rule, laws := range models[file] {
			if !strings.Contains(m.source, rule) {
				t.Errorf("%s has no %s", file, rule)
			}
			for law := range strings.SplitSeq(laws, "|") {
				broken[law] = true
				if !slices.Contains(m.laws, law) {
					t.Errorf("%s has no law %s", file, law)
				}
			}
		}
		for _, rule := range regexp.MustCompile(`BREAK_\w+`).FindAllString(m.source, -1) {
			if models[file][rule] == "" {
				t.Errorf("%s: no law is named for %s", file, rule)
			}
		}
		for _, law := range m.laws {
			if !broken[law] {
				t.Errorf("%s: nothing breaks %s", file, law)
			}
		}
	}
}

// TestStepsAreNamed: each step that a model lists is one of its steps, and the code
// has a comment that names it.
func TestStepsAreNamed(t *testing.T) {
	named := namedInCode(t)
	for file := range models {
		m := load(t, file)
		steps := regexp.MustCompile(`\b`+strings.TrimSuffix(file, ".pml")+`\.([A-Z]+)\b`).FindAllStringSubmatch(m.source, -1)
		if len(steps) == 0 {
			t.Errorf("%s lists no steps", file)
		}
		for _, step := range steps {
			// Once in the list, and once where it is done.
			if len(regexp.MustCompile(`\b`+step[1]+`\b`).FindAllString(m.source, -1)) < 2 {
				t.Errorf("%s lists %s, and has no such step", file, step[0])
			}
			if !named[step[0]] {
				t.Errorf("no comment in the code names %s", step[0])
			}
			delete(named, step[0])
		}
	}
	for step := range named {
		t.Errorf("a comment in the code names %s, which no model lists", step)
	}
}

// namedInCode are the steps that comments name, as "Model: lease.BEAT, force.BEAT."
func namedInCode(t *testing.T) map[string]bool {
	t.Helper()
	named := make(map[string]bool)
	comment := regexp.MustCompile(`(?://|--) Model: (.*)\.\n`)
	for _, pattern := range []string{"../lock/*.go", "../session/*.go", "../session/ledger/*.go", "../heartbeat/*.go",
		"../backends/*/*.go", "../backends/*/lua/*.lua", "../localapi/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range comment.FindAllStringSubmatch(string(text), -1) {
				for step := range strings.SplitSeq(c[1], ", ") {
					named[step] = true
				}
			}
		}
	}
	return named
}

// checked is a model.
type checked struct {
	path   string
	source string
	laws   []string // its assertions
	ltl    bool     // they are about what happens in the end
}

func load(t *testing.T, file string) *checked {
	t.Helper()
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &checked{path: path, source: string(text)}
	for _, law := range regexp.MustCompile(`(?m)^ltl (\w+)|\bmust\((\w+_\w+),`).FindAllStringSubmatch(m.source, -1) {
		m.ltl = law[1] != ""
		m.laws = append(m.laws, law[1]+law[2])
	}
	slices.Sort(m.laws)
	m.laws = slices.Compact(m.laws)
	return m
}

// check lists the laws that are found broken without that rule: of assertions the
// first one, for there the search ends.
func (m *checked) check(t *testing.T, without string) (broken []string) {
	t.Helper()
	dir := t.TempDir()
	spin, gcc := []string{"-a", filepath.Base(m.path)}, []string{"-w", "-DMEMLIM=4096", "-o", "pan", "pan.c"}
	if without != "" {
		spin = append([]string{"-D" + without}, spin...)
	}
	if without == "" || m.ltl { // else the search ends soon, and an optimizer takes longer than it saves
		gcc = append(gcc, "-O1")
	}
	if slices.Contains(otherWayRound, without) {
		gcc = append(gcc, "-DP_REVERSE")
	}
	if !m.ltl {
		gcc = append(gcc, "-DSAFETY")
	}
	pan := m.compiled(t, spin, gcc)
	if !m.ltl {
		out := run(t, dir, pan, "-m100000", "-n")
		if law := regexp.MustCompile(`assertion violated (\w+)`).FindStringSubmatch(out); law != nil {
			return law[1:]
		}
		return whole(t, out)
	}
	for _, law := range m.laws {
		out := run(t, dir, pan, "-m100000", "-n", "-a", "-f", "-N", law)
		if strings.Contains(out, "acceptance cycle (at depth") {
			broken = append(broken, law)
		} else {
			broken = append(broken, whole(t, out)...)
		}
	}
	return broken
}

// compiled gives the program that searches the model. The search is done each time, but spin and gcc take far longer to make
// the program than it runs: it is kept in the user's cache, by all that it is made of.
func (m *checked) compiled(t *testing.T, spin, gcc []string) (path string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil { // without a home nothing is kept
		cache = t.TempDir()
	}
	key := fmt.Sprintf("%q %q %q %q", versions(), spin, gcc, m.source)
	path = filepath.Join(cache, "locksidecar-test", "model", fmt.Sprintf("%x", sha256.Sum256([]byte(key))))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(m.path)), []byte(m.source), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "spin", spin...)
	run(t, dir, "gcc", gcc...)
	if err := os.Rename(filepath.Join(dir, "pan"), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// versions are those of the programs that make programs of models.
var versions = sync.OnceValue(func() string {
	spin, _ := exec.Command("spin", "-V").CombinedOutput()
	gcc, _ := exec.Command("gcc", "--version").CombinedOutput()
	return string(spin) + string(gcc)
})

// whole is the result of a search that has found nothing: it must have come to its end.
func whole(t *testing.T, out string) []string {
	t.Helper()
	if !strings.Contains(out, "errors: 0") || strings.Contains(out, "Search not completed") || strings.Contains(out, "search depth too small") {
		t.Fatalf("the search has not come to its end:\n%s", out)
	}
	t.Log(strings.TrimSpace(regexp.MustCompile(`(?m)^.*states, stored.*$`).FindString(out)))
	return nil
}

func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}
