package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/lock"
)

// won is a write of a race.
type won struct {
	after, next string
	unsure      bool // it lost, or it won and that was not heard of
}

// testRecordRace: of all who write over one version, one does.
func testRecordRace(e *env) {
	const writers, wins = 6, 8
	all := []recorder{e.recorder(), e.recorder(), e.recorder()}
	name := e.name("r")
	var mu sync.Mutex
	var results []won
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			r := all[i%len(all)]
			for n := 0; n < wins && e.ctx.Err() == nil; {
				is, err := r.ReadRecord(e.ctx, name)
				if err == nil {
					next := recordOf(fmt.Sprintf("writer %d", i))
					var unsure bool
					unsure, err = e.again(func() error { return r.WriteRecord(e.ctx, name, is.Version, next, keep) })
					if err == nil {
						n++
					}
					if unsure = unsure && err != nil; unsure || err == nil {
						mu.Lock()
						results = append(results, won{is.Version, next.Version, unsure})
						mu.Unlock()
					}
				}
				if err != nil && !errors.Is(err, lock.ErrRecordChanged) && !errors.Is(err, lock.ErrUnavailable) {
					e.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	at := e.chain(results)
	last := all[0].read(name).Version
	if last != at && !slices.ContainsFunc(results, func(w won) bool { return w.unsure && w.next == last }) {
		e.Errorf("the last that was written is %s, and the record is %s", at, last)
	}

	// As many take it away or write over it: one of them does.
	var first []string
	doubt := false
	for i := range writers {
		wg.Go(func() {
			what, next := "delete", recordOf("")
			do := func() error { return all[i%len(all)].DeleteRecord(e.ctx, name, last) }
			if i%2 == 0 {
				what = next.Version
				do = func() error { return all[i%len(all)].WriteRecord(e.ctx, name, last, next, keep) }
			}
			unsure, err := e.again(do)
			mu.Lock()
			defer mu.Unlock()
			doubt = doubt || unsure
			if err == nil {
				first = append(first, what)
			} else if !errors.Is(err, lock.ErrRecordChanged) {
				e.Errorf("%s: %v", what, err)
			}
		})
	}
	wg.Wait()
	is := all[0].read(name)
	gone := is.Version == "" && !slices.ContainsFunc(first, func(s string) bool { return s != "delete" })
	if !gone && !doubt && !slices.Equal(first, []string{is.Version}) {
		e.Errorf("%q were carried out over one version, and the record is %q", first, is.Version)
	}
	all[0].remove(name, is.Version)
}

// chain puts writes in their order, and gives the version of the last.
func (e *env) chain(writes []won) (last string) {
	e.Helper()
	follows, unheard := make(map[string]string), make(map[string][]string)
	for _, w := range writes {
		if w.unsure {
			unheard[w.after] = append(unheard[w.after], w.next)
			continue
		}
		if other, ok := follows[w.after]; ok {
			e.Errorf("both %s and %s were written over %q", w.next, other, w.after)
		}
		follows[w.after] = w.next
	}
	for len(follows) > 0 {
		next, ok := follows[last]
		for _, u := range unheard[last] {
			if _, led := follows[u]; led && !ok {
				next, ok = u, true
			}
		}
		if !ok {
			e.Fatalf("nobody was told of having written over %q", last)
		}
		delete(follows, last)
		last = next
	}
	return last
}
