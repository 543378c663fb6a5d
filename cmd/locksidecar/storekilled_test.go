package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// The store is killed and started again, with what it had confirmed, while a payment that is
// done once, a command under three locks, two with permits and a leader are at work, and locks are kept and detached. The payment is
// done once, the commands never run beside those that they exclude, what is kept and detached stays so, and nothing is left held.
func TestStoreKilledAtWork(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.Redis, testengine.MariaDB, testengine.MySQL, testengine.Postgres, testengine.ZooKeeper, testengine.Etcd} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			storeKilledAtWork(t, kind)
		})
	}
}

func storeKilledAtWork(t *testing.T, kind *testengine.Kind) {
	server := testengine.New(t, kind)
	url, ttl := server.URL(), "30s" // longer than a server takes to start on a busy machine
	switch kind {
	case testengine.Redis:
		// It has lost nothing, so it may grant at once. It starts soon, and the test takes two thirds of the TTL.
		url, ttl = storeURL(server), "6s"
	case testengine.ZooKeeper:
		url += "?tick=200ms"
	}
	var sides []*sidecarProgram
	for range 2 {
		sides = append(sides, serveProgram(t, "--store", url, "--ttl", ttl))
	}
	dir := t.TempDir()
	journal, goOn := filepath.Join(dir, "journal"), filepath.Join(dir, "go")
	// A job takes place in a folder that two cannot make. It asks what it did before, as one does after UNKNOWN.
	const job = `mkdir "$1/$2" || { echo "beside another" >>"$1/journal"; exit 1; }
trap 'rmdir "$1/$2"' EXIT
trap 'exit 143' TERM
echo "$2 begins" >>"$1/journal"
until [ -e "$1/go" ]; do sleep 0.05; done
grep -q "^$2 done" "$1/journal" || echo "$2 done" >>"$1/journal"`
	once := func(side int) *program {
		return launch(t, nil, binary, "once", "--socket", sides[side].socket, "pay", "--", "sh", "-c", job, "sh", dir, "pay")
	}
	group := func(side int) *program {
		return launch(t, nil, binary, "run", "--socket", sides[side].socket, "a", "b", "c", "--", "sh", "-c", job, "sh", dir, "group")
	}
	has := func(line string, n int) func() bool {
		return func() bool {
			b, _ := os.ReadFile(journal)
			return strings.Count(string(b), line+"\n") >= n
		}
	}
	first, together := once(0), group(0)
	eventually(t, "both are at work", func() bool { return has("pay begins", 1)() && has("group begins", 1)() })
	checkStaying := staying(t, sides[0], sides[1], dir)
	testengine.Crash(t, server, testengine.KeepData)
	if err := server.(testengine.Crasher).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Others come while it is not known yet whether the store still has the holds.
	second, others := once(1), group(1)
	for _, w := range []struct {
		name, resource string
		p              **program
		again          func(int) *program
	}{{"pay", "pay", &second, once}, {"group", "a", &others, group}} {
		eventually(t, "others wait, or have begun", func() bool {
			select {
			case <-(*w.p).exited: // it came too early: the store did not answer
				*w.p = w.again(1)
			default:
			}
			got := cli(t, "get", "--socket", sides[1].socket, "-o", "json", w.resource)
			waits := got.code == 0 && !strings.Contains(strings.ReplaceAll(got.out, " ", ""), `"waiters":[]`)
			return waits || has(w.name+" begins", 2)() || has("beside another", 1)()
		})
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*program{first, together, second, others} {
		p.wait()
	}
	eventually(t, "somebody pays", func() bool { return once(1).wait() == 0 })
	checkStaying()
	if first.code == 0 && has("pay begins", 2)() {
		t.Error("what is recorded as done was begun again")
	}
	b, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(b); strings.Count(text, "pay done") != 1 || strings.Contains(text, "beside another") {
		t.Errorf("what the jobs did:\n%s", text)
	}
	for _, s := range sides {
		eventually(t, "nothing is held", func() bool {
			got := cli(t, "list", "--socket", s.socket, "-o", "json")
			return got.code == 0 && strings.Contains(strings.ReplaceAll(got.out, " ", ""), `"locks":[]`)
		})
	}
}
