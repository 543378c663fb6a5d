package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Whoever saw the mark change counts from then; who finds the first mark believes
// the server about its age, but never that it comes from the future.
func TestPast(t *testing.T) {
	const grace, now = 10 * time.Second, time.Hour
	for _, c := range []struct {
		name  string
		marks []string
		age   time.Duration
		want  time.Duration
	}{
		{"a first mark of now", []string{"a"}, 0, grace},
		{"a first mark that is old", []string{"a"}, 4 * time.Second, 6 * time.Second},
		{"a first mark of the future", []string{"a"}, -time.Hour, grace},
		{"the same mark again", []string{"a", "a"}, 4 * time.Second, 6 * time.Second},
		{"another mark that claims to be old", []string{"a", "b"}, time.Hour, grace},
		{"the mark before that one", []string{"a", "b", "a"}, time.Hour, grace},
	} {
		var p past
		for _, m := range c.marks {
			p.saw(m, c.age, now)
		}
		if left, _ := p.left(grace, now); left != c.want {
			t.Errorf("%s: %s are left, want %s", c.name, left, c.want)
		}
	}
}

// A process that was promoted may have lost what it knew; one whose last replica is
// long gone has not.
func TestSameServer(t *testing.T) {
	p := &presence{run: "1"}
	was := &server{by: p, run: "1", term: "a"}
	for _, c := range []struct {
		is   *server
		want bool
	}{
		{&server{by: p, run: "1", term: "a"}, true},
		{&server{by: p, run: "1", term: "0"}, true},
		{&server{by: p, run: "1", term: "b"}, false},
		{&server{by: p, run: "2", term: "a"}, false},
		{&server{by: &presence{run: "1"}, run: "1", term: "a"}, false},
	} {
		if got := c.is.same(was); got != c.want {
			t.Errorf("%+v after %+v: same %v, want %v", c.is, was, got, c.want)
		}
	}
	if was.same(nil) {
		t.Error("the same as nobody")
	}
}

// A bucket in which a lease has had nothing for a TTL costs no heartbeats any more.
// Issue 9, 3.4.
func TestIdleBucketIsClosed(t *testing.T) { again(t, testIdleBucketIsClosed) }

func testIdleBucketIsClosed(t testing.TB) {
	s := testengine.Shared(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, 3*time.Second) // a busy machine may stand still for a second or two
	known := func(r lock.Resource) bool {
		_, err := b.client.ZScore(t.Context(), b.keys.buckets[b.keys.bucketOf(r)].leases, string(l.ID())).Result()
		return err == nil
	}
	ctx := context.Background()
	kept := hold(t, l, "kept")
	for range 3 {
		g := hold(t, l, "idle")
		if !known("idle") {
			t.Fatal("a lease has a hold in a bucket that does not know it")
		}
		if err := l.Release(ctx, "idle", g.ID); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the idle bucket is closed", func() error {
			if err := beat(ctx, l); errors.Is(err, lock.ErrLeaseLost) {
				t.Fatal(err)
			} else if err != nil {
				return err
			}
			if known("idle") {
				return errors.New("it is open")
			}
			return nil
		})
	}
	if !known("kept") {
		t.Error("a bucket with a hold was closed")
	}
	if err := l.Release(ctx, "kept", kept.ID); err != nil {
		t.Error(err)
	}
}
