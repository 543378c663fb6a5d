package zklock

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestSurveyOutlivesWhoAskedFirst: those who are refused at the same time share one
// answer about who is in the way. That the first of them waits no longer does not fail
// the others.
func TestSurveyOutlivesWhoAskedFirst(t *testing.T) { again(t, testSurveyOutlivesWhoAskedFirst) }

func testSurveyOutlivesWhoAskedFirst(t testing.TB) {
	_, l := sidecar(t, testengine.Shared(t, testengine.ZooKeeper).URL(), 20*time.Second)
	live(t, l)
	r := unique()
	g := hold(t, l, r, lock.Exclusive)
	d := l.driver
	d.mu.Lock()
	line := d.spots[g.ID].l
	line.surveyTurn = make(chan struct{}, 1)
	d.mu.Unlock()
	line.surveyTurn <- struct{}{} // as while another one is under way

	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	shared := func() *survey {
		d.mu.Lock()
		defer d.mu.Unlock()
		return line.nextSurvey
	}
	ask := func(ctx context.Context, done chan<- error) {
		v, err := line.survey(ctx)
		if err == nil && len(v.head.Holders) != 1 {
			t.Errorf("it has the holders %+v", v.head.Holders)
		}
		done <- err
	}
	go ask(ctx, first)
	for shared() == nil {
		time.Sleep(time.Millisecond)
	}
	go ask(t.Context(), second)
	cancel()
	<-line.surveyTurn
	if err := <-first; err != nil {
		t.Errorf("of the first: %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("of one who still waits: %v", err)
	}
	release(t, l, g)
}
