package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/waitfor"
)

// crossed makes two owners, each at its sidecar, wait for each other, and gives the answer of each.
func crossed(t *testing.T, one, other *sidecarProgram) (first, last <-chan error) {
	t.Helper()
	c := dial(t, other)
	waits := func(side *sidecarProgram, session, owner, has, wants string) (have, want func() <-chan error) {
		c := dial(t, side)
		s, err := c.OpenSession(t.Context(), client.SessionOptions{Name: session})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		ask := func(resource string) <-chan error {
			answer := make(chan error, 1)
			go func() {
				_, err := s.Acquire(t.Context(), resource, client.AcquireOptions{Owner: owner})
				answer <- err
			}()
			return answer
		}
		return func() <-chan error { return ask(has) }, func() <-chan error { return ask(wants) }
	}
	haveA, wantB := waits(one, "shop", "invoice", "orders/1", "orders/2")
	haveB, wantA := waits(other, "billing", "refund", "orders/2", "orders/1")
	for _, have := range []func() <-chan error{haveA, haveB} {
		if err := <-have(); err != nil {
			t.Fatal(err)
		}
	}
	queued := func(resource string) {
		t.Helper()
		eventually(t, "somebody waits for "+resource, func() bool {
			l, err := c.Get(t.Context(), resource)
			return err == nil && len(l.GetWaiters()) == 1
		})
		time.Sleep(2 * time.Millisecond) // who asks next is younger
	}
	first = wantB()
	queued("orders/2")
	last = wantA()
	queued("orders/1")
	return first, last
}

// TestDeadlockIsBroken: the one who asked last is told, and the other one waits on.
func TestDeadlockIsBroken(t *testing.T) {
	side := serveProgram(t)
	first, last := crossed(t, side, side)
	err := <-last
	var e *client.Error
	if !errors.Is(err, client.ErrDeadlock) || !errors.As(err, &e) || e.Metadata["resource"] != "orders/1" || e.Metadata["cycle_length"] != "2" ||
		!strings.Contains(e.Message, "invoice of shop") || !strings.Contains(e.Message, "refund of billing") {
		t.Errorf("the last got %v", err)
	}
	select {
	case err := <-first:
		t.Errorf("the first got %v", err)
	default:
	}
	eventually(t, "the log says it", func() bool {
		return strings.Contains(side.err.String(), "deadlock: broken=true resource=orders/1 session=billing")
	})
}

// TestDeadlocksAreShown where they are only reported.
func TestDeadlocksAreShown(t *testing.T) {
	side := serveProgram(t, "--deadlock", "report")
	if got := cli(t, "deadlocks", "--socket", side.socket); got.out != "there is no deadlock\n" || got.code != 0 {
		t.Errorf("none: %+v", got)
	}
	if got := cli(t, "deadlocks", "--tree", "--socket", side.socket); got.out != "nobody waits\n" || got.code != 0 {
		t.Errorf("no tree: %+v", got)
	}
	if got := cli(t, "deadlocks", "--tree", "-o", "json", "--socket", side.socket); !strings.Contains(got.out, `"tree": []`) {
		t.Errorf("no tree as JSON: %+v", got)
	}
	first, last := crossed(t, side, side)
	eventually(t, "it is reported", func() bool { return strings.Contains(side.err.String(), "deadlock: broken=false") })
	got := cli(t, "deadlocks", "--socket", side.socket)
	if lines := strings.Split(got.out, "\n"); got.code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[1], "1         refund of billing (") || !strings.Contains(lines[2], "held EXCLUSIVE by refund of billing (") {
		t.Errorf("status %d\n%s%s", got.code, got.out, got.err)
	}
	got = cli(t, "deadlocks", "--tree", "--socket", side.socket)
	if !strings.Contains(got.out, "└─ orders/1, held EXCLUSIVE for ") || !strings.Contains(got.out, "see locksidecar deadlocks") {
		t.Errorf("tree: %+v", got)
	}
	var answer deadlocksJSON
	got = cli(t, "deadlocks", "--tree", "-o", "json", "--socket", side.socket)
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || len(answer.Deadlocks) != 1 || len(answer.Deadlocks[0]) != 2 || len(answer.Tree) != 1 {
		t.Fatalf("%v: %+v", err, got)
	}
	if e := answer.Deadlocks[0][0]; e.Resource != "orders/1" || e.Waiter.Owner != "refund" || e.Blocker.Owner != "invoice" || e.Waiter.SessionRef == "" ||
		e.Waiter.SessionRef == e.Blocker.SessionRef || e.Waiter.SessionRef != answer.Deadlocks[0][1].Blocker.SessionRef || e.Queued {
		t.Errorf("%+v", e)
	}
	for _, answered := range []<-chan error{first, last} {
		select {
		case err := <-answered:
			t.Errorf("one got %v", err)
		default:
		}
	}
}

// TestDeadlockAcrossSidecars: two apps at two sidecars wait for each other. Either sidecar shows that, with the
// names of both. When one is killed, the other one's app has the lock as soon as the lease of the dead is over.
func TestDeadlockAcrossSidecars(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		store := onStore(t, kind, "--deadlock", "report", "--ttl", "10s")
		one := serveProgram(t, append(store, "--name", "pod-a")...)
		other := serveProgram(t, append(store, "--name", "pod-b")...)
		_, last := crossed(t, one, other)
		for _, side := range []*sidecarProgram{one, other} {
			var answer deadlocksJSON
			eventually(t, "the deadlock is shown", func() bool {
				got := cli(t, "deadlocks", "--tree", "-o", "json", "--socket", side.socket)
				return json.Unmarshal([]byte(got.out), &answer) == nil && len(answer.Deadlocks) == 1 && len(answer.Deadlocks[0]) == 2 && len(answer.Tree) == 1
			})
			e := answer.Deadlocks[0][0]
			if e.Resource != "orders/1" { // who asked last comes first, as far as the store's times tell them apart
				e = answer.Deadlocks[0][1]
			}
			if e.Resource != "orders/1" || e.Waiter.Sidecar != "pod-b" || e.Waiter.Owner != "refund" || e.Blocker.Sidecar != "pod-a" || e.Blocker.Owner != "invoice" {
				t.Errorf("%+v", e)
			}
		}
		eventually(t, "the sidecar of the one who asked last reports it", func() bool {
			return strings.Contains(other.err.String(), "deadlock: broken=false resource=") && strings.Contains(other.err.String(), "/orders/1 session=billing")
		})
		one.signal(syscall.SIGKILL)
		select {
		case err := <-last:
			if err != nil {
				t.Errorf("whose sidecar lives got %v", err)
			}
		case <-time.After(patience):
			t.Error("whose sidecar lives waits in vain")
		}
	})
}

// TestTreeForPeople is the drawing, with all that it can show.
func TestTreeForPeople(t *testing.T) {
	party := func(ref, label string, pid int32, mode lock.Mode, age time.Duration) lock.Holding {
		return lock.Holding{Mode: mode, Age: age, Sidecar: "pod-" + ref, Owner: lock.Owner{Ref: ref, Label: label, PID: pid, Session: "app\n" + ref}}
	}
	a, b, c := party("a", "t1", 7, lock.Shared, time.Minute), party("b", "", 8, lock.Exclusive, time.Second), party("c", "t3", 0, lock.Shared, 500*time.Millisecond)
	g := waitfor.New([]lock.Status{
		{Resource: "r", Holders: []lock.Holding{a, party("d", "t4", 9, lock.Shared, time.Hour)}, Waiters: []lock.Holding{b, c}},
		{Resource: "s", Holders: []lock.Holding{c}, Waiters: []lock.Holding{b}},
	})
	var out bytes.Buffer
	if err := writeTree(&out, g.Tree(), 0); err != nil {
		t.Fatal(err)
	}
	want := `t1 of app\na (pid 7 at pod-a)
└─ r, held SHARED for 1m: app\nb (pid 8 at pod-b) waits 1s, EXCLUSIVE, also for 1 more
   └─ r, asked for before EXCLUSIVE for 1s: t3 of app\nc (pid ? at pod-c) waits 500ms, SHARED
      └─ s, held SHARED for 500ms: app\nb (pid 8 at pod-b) waits 1s, EXCLUSIVE (see above for whom it blocks)
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
