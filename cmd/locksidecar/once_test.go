package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// What succeeded is not run again, what failed is, and its program is told what came before.
func TestOnceProgram(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	dir := t.TempDir()
	log, note := filepath.Join(dir, "log"), filepath.Join(dir, "note")
	once := func(status string, more ...string) result {
		t.Helper()
		args := append([]string{"once", "--socket", side.socket, "--note-file", note}, more...)
		return cliEnv(t, []string{"LOCKSIDECAR_PREVIOUS=inherited"}, append(args, "w/1", "--", "sh", "-c",
			`echo "$LOCKSIDECAR_ATTEMPT ${LOCKSIDECAR_PREVIOUS-none} $LOCKSIDECAR_PREVIOUS_NOTE" >>"$1"; exit "$2"`, "pay", log, status)...)
	}
	outcomes := func(args ...string) string {
		t.Helper()
		got := cli(t, append([]string{"outcomes", "--socket", side.socket}, args...)...)
		if got.code != 0 {
			t.Fatalf("outcomes %v: %+v", args, got)
		}
		return got.out
	}
	if out := outcomes(); out != "nothing is recorded\n" {
		t.Errorf("at first: %s", out)
	}
	if err := os.WriteFile(note, []byte("no \x1b[31mmoney\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := once("3"); got.code != 3 {
		t.Errorf("first: %+v", got)
	}
	if out := outcomes("--state", "failed,unknown", "--prefix", "w/"); !strings.Contains(out, "FAILED") || !strings.Contains(out, "exit status 3: no [31mmoney") {
		t.Errorf("failed: %s", out)
	}
	if got := once("0", "--attempts", "1"); got.code != exitExhausted || !strings.Contains(got.err, "tried as often") {
		t.Errorf("no attempt left: %+v", got)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	if got := once("0", "--attempts", "2"); got.code != 0 || got.err != "" {
		t.Errorf("second: %+v", got)
	}
	for _, wait := range []string{"forever", "0s"} {
		if got := once("9", "--wait", wait); got.code != 0 || !strings.Contains(got.err, "not run: done before: attempt 2, SUCCEEDED at ") {
			t.Errorf("third: %+v", got)
		}
	}
	if b, _ := os.ReadFile(log); string(b) != "1 none \n2 FAILED exit status 3: no [31mmoney\n" {
		t.Errorf("CMD ran:\n%s", b)
	}
	var list struct{ Outcomes []map[string]any }
	if err := json.Unmarshal([]byte(outcomes("--state", "SUCCEEDED", "-o", "json")), &list); err != nil || len(list.Outcomes) != 1 || list.Outcomes[0]["attempt"] != 2.0 {
		t.Errorf("%v: %v", err, list)
	}
	if out := outcomes("reset", "w/1"); !strings.HasPrefix(out, "w/1: forgotten; it was: attempt 2, SUCCEEDED") {
		t.Errorf("reset: %s", out)
	}
	for _, output := range []string{"table", "json"} {
		if got := cli(t, "outcomes", "reset", "--socket", side.socket, "-o", output, "w/1"); got.code != exitFailure || !strings.Contains(got.err, "nothing is recorded") {
			t.Errorf("reset again: %+v", got)
		}
	}
}

// Whatever is killed, the outcome is unknown, and the next attempt is told so.
func TestOnceKilled(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		onceKilled(t, kind)
	})
}

func onceKilled(t *testing.T, kind *testengine.Kind) {
	store := onStore(t, kind, "--ttl", shortTTL.String())
	var sides []*sidecarProgram
	for range 2 {
		sides = append(sides, serveProgram(t, store...))
	}
	state := func(want string) {
		t.Helper()
		if got := cli(t, "outcomes", "--socket", sides[1].socket, "--state", want); !strings.Contains(got.out, "job") {
			t.Fatalf("not %s: %+v", want, got)
		}
	}
	once := func(script string) result {
		return cli(t, "once", "--socket", sides[1].socket, "job", "--", "sh", "-c", script)
	}
	for _, script := range []string{"kill -9 $$", `sh -c 'kill -9 $$'; exit $?`} { // the shell tells of what it has run
		if got := once(script); got.code != exitSignalled+int(syscall.SIGKILL) {
			t.Errorf("CMD killed: %+v", got)
		}
		state("unknown")
	}

	worker := func() *program {
		p := launch(t, nil, binary, "once", "--socket", sides[0].socket, "job", "--", "sh", "-c", "echo works; exec sleep 600")
		eventually(t, "CMD works", func() bool { return strings.Contains(p.out.String(), "works") })
		return p
	}
	p := worker()
	if got := cli(t, "outcomes", "reset", "--socket", sides[1].socket, "job"); got.code != exitFailure || !strings.Contains(got.err, "not free") {
		t.Errorf("reset of what is at work: %+v", got)
	}
	p.signal(syscall.SIGKILL)
	p.wait()
	eventually(t, "the lock is free", func() bool {
		got := cli(t, "once", "--socket", sides[1].socket, "--wait", "0s", "job", "--", "sh", "-c", `test "$LOCKSIDECAR_ATTEMPT $LOCKSIDECAR_PREVIOUS" = "4 UNKNOWN" && exit 4`)
		return got.code == 4
	})
	state("failed")

	p = worker()
	sides[0].signal(syscall.SIGKILL)
	if code := p.wait(); code != exitLost {
		t.Errorf("the sidecar killed: status %d, %s", code, p.err)
	}
	state("unknown")
	if got := once(`test "$LOCKSIDECAR_ATTEMPT $LOCKSIDECAR_PREVIOUS" = "6 UNKNOWN"`); got.code != 0 {
		t.Errorf("the last: %+v", got)
	}
	state("succeeded")
}

// Without a sidecar: straight to the store, whichever it is.
func TestOnceOnStore(t *testing.T) { onEach(t, onceOnStore) }

func onceOnStore(t *testing.T, kind *testengine.Kind) {
	t.Parallel()
	store := onStore(t, kind)
	args := append(append([]string{"once"}, store...), "job", "--", "sh", "-c", "echo ran")
	for _, out := range []string{"ran\n", ""} {
		if got := cli(t, args...); got.code != 0 || got.out != out {
			t.Errorf("%+v", got)
		}
	}
	if got := cli(t, append([]string{"outcomes"}, store...)...); got.code != 0 || !strings.Contains(got.out, "SUCCEEDED") {
		t.Errorf("outcomes: %+v", got)
	}
	if got := cli(t, append([]string{"outcomes", "reset", "job"}, store...)...); got.code != 0 {
		t.Errorf("reset: %+v", got)
	}
}

func TestOnceUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--keep", "0s", "a", "--", "true"},
		{"--keep", "401d", "a", "--", "true"},
		{"--keep", "500ms", "a", "--", "true"},
		{"--keep", "xd", "a", "--", "true"},
		{"--attempts", "-1", "a", "--", "true"},
		{"--shared", "a", "--", "true"},
		{"a"},
		{"--", "sh", "-c", "exit 0"},
	} {
		if got := cli(t, append([]string{"once"}, args...)...); got.code != exitOwnFailure || strings.Contains(got.err, "RESOURCE") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	for _, args := range [][]string{{"--state", "done"}, {"reset"}, {"reset", "a", "b"}, {"a"}} {
		if got := cli(t, append([]string{"outcomes"}, args...)...); got.code != exitUsage {
			t.Errorf("outcomes %v: %+v", args, got)
		}
	}
}

func TestKeepFlag(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"1d", "400d", "12h0m0s", "1s"} {
		var k keepFlag
		if err := k.Set(s); err != nil || k.String() != s {
			t.Errorf("%s is %s, %v", s, &k, err)
		}
	}
}

// What does not fit into a note is left out, and no rune is cut.
func TestNoteFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "note")
	for text, want := range map[string]string{
		strings.Repeat("x", 5000):             strings.Repeat("x", 1000),
		"x" + strings.Repeat("ä", 5000):       "x" + strings.Repeat("ä", 499),
		"a\xffb\x00\n\n":                      "ab",
		strings.Repeat("x", 999) + "€ and on": strings.Repeat("x", 999),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := firstOf(name); got != want {
			t.Errorf("%.20q: %d bytes, want %d", text, len(got), len(want))
		}
	}
}
