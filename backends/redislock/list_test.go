package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The names of many leases come out sorted and complete, whatever is read of each
// at a time, also where many holds are of one name and one name is of many leases.
func TestNamesAreMerged(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		members := make(map[string][]string)
		var want []lock.Resource
		var all []*nameList
		for i := range rnd.IntN(8) {
			key := fmt.Sprint(i)
			for n := range rnd.IntN(60) {
				r := lock.Resource(fmt.Sprint("r", rnd.IntN(40)))
				want = append(want, r)
				members[key] = append(members[key], member(r, lock.HoldID(fmt.Sprint(n))))
			}
			slices.Sort(members[key])
			all = append(all, &nameList{key: key, next: "-"})
		}
		slices.Sort(want)
		want = slices.Compact(want)
		page := 1 + rnd.IntN(20)
		var got []lock.Resource
		for due := all; len(due) > 0; {
			for _, l := range due {
				from := slices.IndexFunc(members[l.key], func(m string) bool { return l.next == "-" || "("+m > l.next })
				if from < 0 {
					from = len(members[l.key])
				}
				l.took(members[l.key][from:min(from+page, len(members[l.key]))], page)
			}
			got, due = merge(got, all)
			if !slices.Equal(got, want[:len(got)]) {
				t.Fatalf("seed %d, %d a page: got %v first, want %v", seed, page, got, want)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, %d a page: got %v, want %v", seed, page, got, want)
		}
	}
}

// trips notes how many commands each trip has.
type trips struct{ most, all int }

// DialHook implements redis.Hook.
func (*trips) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (*trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (p *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.most = max(p.most, len(cmds))
		p.all += len(cmds)
		return next(ctx, cmds)
	}
}

// A page of a Cluster's locks is complete and in order, and no trip for it has many
// commands, however many sidecars have locks there. Issue 9, 3.5.
func TestListGoesInPieces(t *testing.T) { again(t, testListGoesInPieces) }

func testListGoesInPieces(t testing.TB) {
	s := testengine.Shared(t, testengine.RedisCluster)
	url := s.URL() + noGrace + "&prefix=pieces"
	const sidecars, each = 4, 100
	var want []lock.Resource
	for i := range sidecars {
		_, l := sidecar(t, url, 5*time.Minute)
		for n := range each {
			r := lock.Resource(fmt.Sprintf("%03d/%d", n, i))
			hold(t, l, r)
			want = append(want, r)
		}
	}
	slices.Sort(want)
	b := openAt(t, url)
	defer func() { _ = b.Close() }()
	var p trips
	b.client.AddHook(&p)
	var got []lock.Resource
	for page := (lock.Page{Limit: 150}); ; {
		all, err := b.List(t.Context(), "", page)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range all {
			got = append(got, st.Resource)
		}
		if len(all) < page.Limit {
			break
		}
		page.After = all[len(all)-1].Resource
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %d locks, want %d: %v", len(got), len(want), got)
	}
	if p.most > maxPipeline || p.all == 0 {
		t.Errorf("a trip of %d commands, want at most %d", p.most, maxPipeline)
	}
	t.Logf("%d commands", p.all)
}
