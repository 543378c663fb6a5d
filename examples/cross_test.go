package examples

import (
	"crypto/rand"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// holder starts a program in one of the languages that takes a lock. It says
// "waiting", "held FENCE" and, should it happen, "lost REASON".
func holder(t *testing.T, language string, s *sidecar, resource string) *program {
	t.Helper()
	switch language {
	case "Python":
		return launch(t, append(s.env(), pythonEnv...), python(t), "testdata/hold.py", resource)
	case "Java":
		buildJava(t)
		return launch(t, s.env(), "java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", javaJar, "io.github.locksidecar.scenarios.HoldLock", resource)
	case "Node":
		needs(t, "nodejs", "node")
		return launch(t, s.env(), "node", "testdata/hold.js", resource)
	default:
		t.Fatalf("no program in %s", language)
		return nil
	}
}

// kill -9 of a holder lets the waiter in that is another language's, at another
// sidecar. Nothing else runs meanwhile in this package; for the rest of the
// machine, the best of some tries counts.
func TestKilledHolderOfAnotherLanguage(t *testing.T) {
	const (
		tries  = 8
		atMost = 100 * time.Millisecond // a push; how fast it is, bench tells
	)
	long(t)
	one, other := pair(t, "--ttl", "1m")
	order := []string{"Python", "Java", "Python", "Node", "Java"} // and around: Java and Python follow each other both ways
	was := order[len(order)-1]
	held := holder(t, was, one, "a")
	held.says("held ")
	best := map[string]time.Duration{}
	slow := func() bool {
		return len(best) == 0 || slices.Max(slices.Collect(maps.Values(best))) > atMost
	}
	for i := 0; i < tries*len(order) && (i%len(order) != 0 || slow()); i++ {
		language, at := order[i%len(order)], []*sidecar{other, one}[i%2]
		next := holder(t, language, at, "a")
		one.waiters("a", 1)
		time.Sleep(50 * time.Millisecond) // it has come to rest
		killed := time.Now()
		held.signal(syscall.SIGKILL)
		took := next.says("held ").at.Sub(killed)
		pairing := was + " killed, " + language + " waits"
		if b, ok := best[pairing]; !ok || took < b {
			best[pairing] = took
		}
		held, was = next, language
	}
	for _, pairing := range slices.Sorted(maps.Keys(best)) {
		t.Logf("%s: it had the lock after %s", pairing, best[pairing])
	}
	if slow() {
		t.Errorf("at least one took longer than %s, in %d tries", atMost, tries)
	}
}

// A frozen sidecar: its clients in all languages report the loss before the
// store grants the locks again.
func TestFrozenSidecarOfAllLanguages(t *testing.T) {
	languages := []string{"Python", "Java", "Node"}
	long(t)
	python(t)
	buildJava(t)
	for name, store := range map[string]string{
		"Redis": redisURL(t),
		"MySQL": testengine.Shared(t, testengine.MySQL).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--ttl", "4s", "--store", store, "--namespace", "frozen-" + rand.Text()[:8]}
			frozen, other := serve(t, args...), serve(t, args...)
			holders := map[string]*program{}
			for _, l := range languages {
				holders[l] = holder(t, l, frozen, l)
			}
			type answer struct {
				at  time.Time
				err error
			}
			answers := map[string]chan answer{}
			for _, l := range languages {
				holders[l].says("held ")
				answered := make(chan answer, 1)
				answers[l] = answered
				session, err := other.client.OpenSession(t.Context(), client.SessionOptions{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = session.Close() })
				go func() {
					_, err := session.Acquire(t.Context(), l, client.AcquireOptions{Wait: patience})
					answered <- answer{time.Now(), err}
				}()
				other.waiters(l, 1)
			}
			frozen.signal(syscall.SIGSTOP)
			for _, l := range languages {
				granted := <-answers[l]
				if granted.err != nil {
					t.Fatalf("acquire after %s: %v", l, granted.err)
				}
				lost := holders[l].says("lost ")
				if lost.text != "lost SIDECAR_SILENT" || !lost.at.Before(granted.at) {
					t.Errorf("%s said %q at %s, and the store granted the lock again at %s", l, lost.text, lost.at, granted.at)
				}
				t.Logf("%s reported the loss %s before the store granted the lock again", l, granted.at.Sub(lost.at))
			}
		})
	}
}
