package zklock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestGrantedWhileOthersTakeSlots: one of those who ask for a permit takes slots for all of them, with a trip for each here, because each
// has its nodes in another session. A call returns when its own permit is granted, and not when the last one is.
func TestGrantedWhileOthersTakeSlots(t *testing.T) { again(t, testGrantedWhileOthersTakeSlots) }

func testGrantedWhileOthersTakeSlots(t testing.TB) {
	const longest = 8 * time.Second // how long the last claim is kept back at most
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url+"?timeout=12s", 40*time.Second)
	live(t, l)
	d := l.driver
	fillUp(t, l, d.leaseNode.s) // which reads for all
	var qs [3]lock.Request
	r := unique()
	var claims [3]chan struct{} // closed when the claim is on its way
	for i := range qs {
		qs[i], claims[i] = request(r, lock.Permits(3)), make(chan struct{})
	}
	qs[1].Try = true
	placed := func(i int) *zksession.Session {
		d.mu.Lock()
		defer d.mu.Unlock()
		if p := d.spots[qs[i].ID]; p != nil && p.name != "" {
			return p.room.Session()
		}
		return nil
	}
	returned, late := make(chan struct{}), make(chan struct{})
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			for i, q := range qs {
				if op != opMulti || !strings.Contains(body, slotsWord) || !strings.Contains(body, string(q.ID)) {
					continue
				}
				select {
				case <-claims[i]: // once more
					return pass
				default:
					close(claims[i])
				}
				end := time.Now().Add(longest)
				for i+1 < len(qs) && placed(i+1) == nil && time.Now().Before(end) {
					time.Sleep(time.Millisecond)
				}
				if i == len(qs)-1 {
					select {
					case <-returned:
					case <-time.After(longest):
						close(late)
					}
				}
			}
			return pass
		}
	})
	done := make(chan error, len(qs))
	grants := make(chan lock.Grant, len(qs))
	ended := 0
	for i, q := range qs {
		for ready := i == 0; !ready; {
			select {
			case <-claims[i-1]:
				ready = true
			case err := <-done:
				if ended++; err != nil {
					t.Fatalf("it ended before its slot was on its way: %v", err)
				}
			case <-time.After(patience):
				t.Fatal("no slot is on its way")
			}
		}
		if i > 0 {
			fillUp(t, l, placed(i-1))
		}
		go func() {
			g, err := l.Acquire(t.Context(), q)
			if err == nil {
				grants <- g
			}
			done <- err
		}()
	}
	for ; ended < len(qs)-1; ended++ {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
		case <-late:
			t.Fatal("granted, but Acquire does not return before another one is")
		}
	}
	close(returned)
	if err := <-done; err != nil {
		t.Errorf("Acquire: %v", err)
	}
	goOn(t)
	for range qs {
		g := <-grants
		if err := released(t, l, r, g.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release: %v", err)
		}
	}
	empty(t, b, s.URL(), r)
}
