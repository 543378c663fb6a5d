package redislock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// The names of many leases come out sorted and complete, whatever is read of each
// at a time, also where many holds are of one name and one name is of many leases.
func TestNamesAreMerged(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 9)) //nolint:gosec // a test
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
