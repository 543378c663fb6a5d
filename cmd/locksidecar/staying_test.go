package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// staying takes, before the store is killed, what stays in it beside the usual locks: one that is kept for
// its min_hold, one that is detached, both of two permits, and a lead with a candidate. check tells when the store is
// back, and the file "go" is in dir, whether all of that stays, and whether two ever had the same of it.
func staying(t *testing.T, one, other *sidecarProgram, dir string) (check func()) {
	t.Helper()
	// Two CMDs that have the same file locked have the same slot, or both lead.
	const job = `exec 9>>"$1/$2${LOCKSIDECAR_SLOT-}"; flock -n 9 || echo "beside another: $2" >>"$1/journal"; echo "$LOCKSIDECAR_FENCE ${LOCKSIDECAR_SLOT-}"; `
	permit := func(side *sidecarProgram) *program {
		return launch(t, nil, binary, "run", "--socket", side.socket, "--limit", "2", "permits", "--", "sh", "-c", job+`until [ -e "$1/go" ]; do sleep 0.05; done`, "sh", dir, "slot")
	}
	lead := func(side *sidecarProgram) *program {
		return launch(t, nil, binary, "lead", "--socket", side.socket, "boss", "--", "sh", "-c", job+`echo "$LOCKSIDECAR_FENCE" >>"$1/fences"; exec sleep 600`, "sh", dir, "boss")
	}
	fences := func() int { return leaders(filepath.Join(dir, "fences")) }
	leads := lead(one)
	eventually(t, "somebody leads", func() bool { return fences() == 1 })
	candidate := lead(other)
	c := dial(t, one)
	eventually(t, "a candidate waits", func() bool { _, n := status(t, c, "boss"); return n == 1 })
	checkLead := func() {
		leads.signal(syscall.SIGKILL)
		eventually(t, "the candidate leads", func() bool { return fences() >= 2 || candidate.ended() })
		candidate.signal(syscall.SIGTERM)
		candidate.wait()
		increase(t, filepath.Join(dir, "fences"))
	}
	kept := func(side *sidecarProgram) result {
		return cli(t, "run", "--socket", side.socket, "--wait", "0s", "--min-hold", "1h", "kept", "--", "true")
	}
	if got := kept(one); got.code != 0 {
		t.Fatalf("run --min-hold: %+v", got)
	}
	handle := strings.TrimSpace(cli(t, "detached", "take", "--socket", one.socket, "--ttl", "1h", "--wait", "0s", "detached").out)
	var was struct{ Holders []struct{ Fence string } }
	if got := cli(t, "get", "--socket", one.socket, "-o", "json", "detached"); json.Unmarshal([]byte(got.out), &was) != nil || len(was.Holders) != 1 {
		t.Fatalf("get what is detached: %+v", got)
	}
	have := []*program{permit(one), permit(other)}
	for _, p := range have {
		eventually(t, "CMD has a permit", func() bool { return strings.Contains(p.out.String(), "\n") })
	}
	return func() {
		t.Helper()
		checkLead()
		eventually(t, "it is still kept", func() bool {
			got := kept(other)
			if got.code == 0 {
				t.Fatal("broken law: what is kept was granted")
			}
			return got.code == exitNotGot && strings.Contains(got.err, "kept for another")
		})
		eventually(t, "it is still detached, and a worker has it with the same fence", func() bool {
			got := cliEnv(t, []string{"LOCKSIDECAR_HANDLE=" + handle}, "run", "--socket", other.socket, "--", "sh", "-c", `echo "$LOCKSIDECAR_FENCE"`)
			if got.code == 0 && strings.TrimSpace(got.out) != was.Holders[0].Fence {
				t.Errorf("attached with fence %s, was detached with %s", got.out, was.Holders[0].Fence)
			}
			return got.code == 0
		})
		for range 2 { // one after the other: others have had both before
			p := permit(other)
			have = append(have, p)
			if code := p.wait(); code != 0 {
				t.Errorf("a permit after the store was killed: status %d, %s", code, p.err)
			}
		}
		for _, p := range have {
			p.wait()
			if _, slot, _ := strings.Cut(strings.TrimSpace(p.out.String()), " "); slot != "0" && slot != "1" {
				t.Errorf("broken law: one of two permits has the slot %q", slot)
			}
		}
		if got := cli(t, "release", "--socket", other.socket, "--force", "kept"); got.code != 0 {
			t.Errorf("release --force: %+v", got)
		}
	}
}

// increase checks that each line of a file has a greater number than the one before.
func increase(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for line := range strings.Lines(string(b)) {
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil || n <= last {
			t.Errorf("broken law: the fences do not grow:\n%s", b)
			return
		}
		last = n
	}
}
