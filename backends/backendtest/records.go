package backendtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// recorder is the Records of one backend, with the names of one test.
type recorder struct {
	lock.Records
	e *env
	b lock.Backend
}

// recorder opens a backend that keeps records.
func (e *env) recorder() recorder {
	e.Helper()
	b := e.open()
	records, ok := lock.RecordsOf(b)
	if !ok {
		e.Fatal("the store keeps no records")
	}
	return recorder{records, e, b}
}

// version gives one that no other write has.
func version() string { return string(lock.NewHoldID()) }

func recordOf(value string) lock.Record { return lock.Record{Version: version(), Value: []byte(value)} }

// keep is longer than a test.
const keep = time.Hour

// write is a write that must be carried out.
func (r recorder) write(name lock.Resource, after string, next lock.Record) lock.Record {
	r.e.Helper()
	if err := r.e.answered(func() error { return r.WriteRecord(r.e.ctx, name, after, next, keep) }); err != nil {
		r.e.Fatalf("WriteRecord(%q) after %q: %v", name, after, err)
	}
	return next
}

// has checks what a record is; nil: there is none.
func (r recorder) has(name lock.Resource, want *lock.Record) {
	r.e.Helper()
	got := r.read(name)
	if want == nil {
		want = &lock.Record{}
	}
	if got.Version != want.Version || !bytes.Equal(got.Value, want.Value) {
		r.e.Fatalf("the record of %q is %q with %d bytes, want %q with %d", name, got.Version, len(got.Value), want.Version, len(want.Value))
	}
}

func (r recorder) read(name lock.Resource) (rec lock.Record) {
	r.e.Helper()
	err := r.e.answered(func() (err error) { rec, err = r.ReadRecord(r.e.ctx, name); return err })
	if err != nil {
		r.e.Fatalf("ReadRecord(%q): %v", name, err)
	}
	return rec
}

func (r recorder) remove(name lock.Resource, after string) {
	r.e.Helper()
	if err := r.e.answered(func() error { return r.DeleteRecord(r.e.ctx, name, after) }); err != nil {
		r.e.Fatalf("DeleteRecord(%q): %v", name, err)
	}
}

func (r recorder) list(prefix string, p lock.Page) (all []lock.NamedRecord) {
	r.e.Helper()
	err := r.e.answered(func() (err error) { all, err = r.ListRecords(r.e.ctx, prefix, p); return err })
	if err != nil {
		r.e.Fatalf("ListRecords: %v", err)
	}
	return all
}

func (e *env) changed(what string, err error) {
	e.Helper()
	if !errors.Is(err, lock.ErrRecordChanged) {
		e.Errorf("%s: got %v, want ErrRecordChanged", what, err)
	}
}

// again is answered for a goroutine of a test. It tells whether the outcome was unknown
// in between.
func (e *env) again(f func() error) (unsure bool, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if err = f(); !errors.Is(err, lock.ErrUnavailable) || time.Now().After(end) {
			return unsure, err
		}
		unsure = true
	}
}

// testRecordVersions: a write and a delete need to know what is there.
func testRecordVersions(e *env) {
	a, b := e.recorder(), e.recorder()
	name := e.name("r")
	a.has(name, nil)
	began := time.Now()
	e.changed("WriteRecord over a record where there is none", a.WriteRecord(e.ctx, name, version(), recordOf(""), keep))
	if err := a.DeleteRecord(e.ctx, name, version()); err != nil {
		e.Errorf("DeleteRecord where there is none: %v", err)
	}
	first := a.write(name, "", recordOf("one"))
	b.has(name, &first)
	e.changed("WriteRecord where there is one", b.WriteRecord(e.ctx, name, "", recordOf("two"), keep))
	e.changed("WriteRecord over another", b.WriteRecord(e.ctx, name, version(), recordOf("two"), keep))
	e.changed("DeleteRecord of another", b.DeleteRecord(e.ctx, name, version()))
	e.changed("DeleteRecord of none", b.DeleteRecord(e.ctx, name, ""))
	b.has(name, &first)
	before := b.read(name).Age
	time.Sleep(30 * time.Millisecond)
	if after := b.read(name).Age; after < before+20*time.Millisecond || after > time.Since(began)+time.Second/10 {
		e.Errorf("30 ms later the age of a record that was written less than %s ago went from %s to %s", time.Since(began), before, after)
	}
	a.write(name, "", first) // the same again
	second := b.write(name, first.Version, recordOf("two"))
	a.has(name, &second)
	e.changed("WriteRecord of what was there before", a.WriteRecord(e.ctx, name, "", first, keep))
	e.changed("WriteRecord over what was there before", a.WriteRecord(e.ctx, name, first.Version, recordOf("three"), keep))
	b.write(name, first.Version, second)
	e.changed("DeleteRecord of what was there before", a.DeleteRecord(e.ctx, name, first.Version))
	a.remove(name, second.Version)
	b.has(name, nil)
	b.remove(name, second.Version)
	third := b.write(name, "", recordOf("three"))
	a.has(name, &third)
	a.remove(name, third.Version)

	for what, w := range map[string]struct {
		lock.Record
		keep time.Duration
	}{
		"no version":           {lock.Record{}, keep},
		"a long version":       {lock.Record{Version: strings.Repeat("v", lock.MaxRecordVersion+1)}, keep},
		"a version of words":   {lock.Record{Version: "a b"}, keep},
		"a version of letters": {lock.Record{Version: "é"}, keep},
		"a long value":         {recordOf(strings.Repeat("x", lock.MaxRecord+1)), keep},
		"a short keep":         {recordOf(""), lock.MinKeep - 1},
		"a long keep":          {recordOf(""), lock.MaxKeep + 1},
	} {
		if err := a.WriteRecord(e.ctx, name, "", w.Record, w.keep); !errors.Is(err, lock.ErrInvalid) {
			e.Errorf("WriteRecord with %s: got %v, want ErrInvalid", what, err)
		}
	}
}

// testRecordExpires: a store keeps a record for its time, and no trace of it for long.
func testRecordExpires(e *env) {
	a, b := e.recorder(), e.recorder()
	brief, renewed, long := e.name("brief"), e.name("renewed"), e.name("long")
	put := func(name lock.Resource, after string, keep time.Duration) lock.Record {
		e.Helper()
		rec := recordOf(keep.String())
		if err := e.answered(func() error { return a.WriteRecord(e.ctx, name, after, rec, keep) }); err != nil {
			e.Fatalf("WriteRecord for %s: %v", keep, err)
		}
		return rec
	}
	kept := put(long, "", lock.MaxKeep)
	start := time.Now()
	first := put(renewed, "", 2*time.Second)
	again := recordOf("again")
	err := e.answered(func() error { return a.WriteRecord(e.ctx, renewed, first.Version, again, keep) })
	if errors.Is(err, lock.ErrRecordChanged) && time.Since(start) >= 2*time.Second {
		e.slow("a record was not renewed in time")
	}
	if err != nil {
		e.Fatalf("WriteRecord over a record of %s: %v", time.Since(start), err)
	}
	began := time.Now()
	gone := put(brief, "", lock.MinKeep)
	for ; ; time.Sleep(20 * time.Millisecond) {
		at := time.Now()
		if b.read(brief).Version == "" {
			break
		}
		if at.Sub(began) > patience {
			e.Fatalf("a record for %s is there after %s", lock.MinKeep, patience)
		}
	}
	if took := time.Since(began); took < lock.MinKeep-lock.MinKeep/100 {
		e.Errorf("a record for %s is gone after %s", lock.MinKeep, took)
	}
	for _, rec := range b.list(e.prefix, lock.Page{Limit: 10}) {
		if rec.Resource == brief {
			e.Error("a record that is over is listed")
		}
	}
	e.changed("WriteRecord over what is over", a.WriteRecord(e.ctx, brief, gone.Version, recordOf(""), keep))
	put(brief, "", lock.MinKeep) // and is left
	time.Sleep(time.Until(began.Add(2 * time.Second)))
	b.has(renewed, &again)
	b.has(long, &kept)
	a.remove(renewed, again.Version)
	a.remove(long, kept.Version)
}

// testRecordValues: no byte of a value and no character of a name means anything to the store.
func testRecordValues(e *env) {
	a, b := e.recorder(), e.recorder()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	values := map[string]lock.Record{
		"empty":   recordOf(""),
		"null":    recordOf("\x00"),
		"every":   recordOf(string(every)),
		"largest": recordOf(string(bytes.Repeat(every, lock.MaxRecord/len(every)))),
		"spaces":  recordOf(" \n "),
		"quotes":  recordOf(`'"\'); --`),
		"version": {Version: strings.Repeat("~!", lock.MaxRecordVersion/2), Value: []byte("0")},
	}
	for what, rec := range values {
		name := e.name("value/" + what)
		a.write(name, "", rec)
		b.has(name, &rec)
		a.remove(name, rec.Version)
	}
	names := []lock.Resource{e.name(e.longest("long")), e.name(e.longest("日本"))}
	for _, s := range e.oddNames() {
		if name := e.name(s); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	e.each(len(names), func(i int) error {
		return a.WriteRecord(e.ctx, names[i], "", lock.Record{Version: "v", Value: []byte(names[i])}, keep)
	})
	for _, name := range names {
		b.has(name, &lock.Record{Version: "v", Value: []byte(name)})
	}
	slices.Sort(names)
	for _, prefix := range []string{"", "a", "á", "日", "a/", "a:", "{", "*", "a*", "[", "\\", "%", "_", "'", e.longest("日本")} {
		prefix = e.prefix + prefix
		var want, got []lock.Resource
		for _, name := range names {
			if strings.HasPrefix(string(name), prefix) {
				want = append(want, name)
			}
		}
		for _, rec := range b.list(prefix, lock.Page{Limit: lock.MaxPage}) {
			got = append(got, rec.Resource)
			if string(rec.Value) != string(rec.Resource) || rec.Version != "v" {
				e.Errorf("ListRecords gives %q to %q", rec.Value, rec.Resource)
			}
		}
		if !slices.Equal(got, want) {
			e.Errorf("ListRecords(%q) gives %q, want %q", prefix, got, want)
		}
	}
	e.each(len(names), func(i int) error { return a.DeleteRecord(e.ctx, names[i], "v") })
}

// each does n things, some at a time.
func (e *env) each(n int, do func(i int) error) {
	e.Helper()
	var wg sync.WaitGroup
	const some = 16
	for k := range some {
		wg.Go(func() {
			for i := k; i < n; i += some {
				if _, err := e.again(func() error { return do(i) }); err != nil {
					e.Errorf("number %d of %d: %v", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if e.Failed() {
		e.FailNow()
	}
}

// testRecordPages: many records come in pages, in byte order.
func testRecordPages(e *env) {
	a, b := e.recorder(), e.recorder()
	n := max(e.mass(1100), 20)
	names := make([]lock.Resource, n)
	for i := range names {
		names[i] = e.name(fmt.Sprintf("x/%d", i*7)) // byte order is not the order of numbers
	}
	around := []lock.Resource{e.name("w"), e.name("x"), e.name("x0"), e.name("y")}
	all := slices.Concat(names, around)
	e.each(len(all), func(i int) error {
		return a.WriteRecord(e.ctx, all[i], "", lock.Record{Version: "v", Value: []byte(all[i])}, keep)
	})
	slices.Sort(names)
	prefix := e.prefix + "x/"
	for _, limit := range []int{0, 1 + n/3} {
		want := cmp.Or(limit, lock.MaxPage)
		var got []lock.Resource
		for page := (lock.Page{Limit: limit}); ; page.After = got[len(got)-1] {
			part := b.list(prefix, page)
			for _, rec := range part {
				got = append(got, rec.Resource)
				if string(rec.Value) != string(rec.Resource) {
					e.Errorf("ListRecords gives %q to %q", rec.Value, rec.Resource)
				}
			}
			if len(part) != min(want, n-len(got)+len(part)) || len(got) == 0 {
				e.Fatalf("a page of %d after %d of %d has %d", limit, len(got)-len(part), n, len(part))
			}
			if len(part) < want {
				break
			}
		}
		if !slices.Equal(got, names) {
			e.Errorf("all pages of %d: got %d names, want %d in byte order", limit, len(got), len(names))
		}
	}
	for _, page := range []struct {
		after lock.Resource
		want  []lock.Resource
	}{{e.name("a"), names[:1]}, {names[0] + "\x20", names[1:2]}, {e.name("z"), nil}} {
		got := b.list(prefix, lock.Page{After: page.after, Limit: 1})
		if len(got) != len(page.want) || len(got) == 1 && got[0].Resource != page.want[0] {
			e.Errorf("the page after %q has %+v, want %q", page.after, got, page.want)
		}
	}
	e.each(len(all), func(i int) error { return b.DeleteRecord(e.ctx, all[i], "v") })
	if left := a.list(e.prefix, lock.Page{}); len(left) > 0 {
		e.Errorf("%d are listed when all are gone", len(left))
	}
}

// testRecordBesideLock: a record and the lock of its name know nothing of each other.
func testRecordBesideLock(e *env) {
	s := e.sidecar()
	r := e.recorder()
	name := e.name("r")
	g := e.acquire(s, name, lock.Exclusive)
	r.has(name, nil)
	if all := r.list(e.prefix, lock.Page{}); len(all) > 0 {
		e.Errorf("a lock is listed as the records %+v", all)
	}
	first := r.write(name, "", recordOf("one"))
	e.holds(s.b, name, []lock.HoldID{g.ID}, nil)
	w := e.queue(s, name, lock.Exclusive)
	second := r.write(name, first.Version, recordOf("two"))
	e.release(s, g)
	g = w.granted()
	r.has(name, &second)
	r.remove(name, second.Version)
	e.holds(s.b, name, []lock.HoldID{g.ID}, nil)
	third := r.write(name, "", recordOf("three"))
	e.force(e.ctx, r.b, name, g.ID, 0).ok()
	s.taken(g.ID)
	r.has(name, &third)
	e.holds(s.b, name, nil, nil)
	if all := e.list(s.b, e.prefix, lock.Page{Limit: 10}); len(all) > 0 {
		e.Errorf("a record is listed as the locks %+v", all)
	}
	r.remove(name, third.Version)
}

// testRecordReplyLost: what had no answer was carried out or not, and may be later, until
// another write has come through.
func testRecordReplyLost(e *env) {
	a, b := e.recorder(), e.recorder()
	fresh, over, gone := e.name("fresh"), e.name("over"), e.name("gone")
	old := b.write(over, "", recordOf("old"))
	doomed := b.write(gone, "", recordOf("doomed"))
	w1, w2 := recordOf("first"), recordOf("new")
	_ = a.read(over) // it is connected
	e.lost(a.b,
		func(ctx context.Context) error { return a.WriteRecord(ctx, fresh, "", w1, keep) },
		func(ctx context.Context) error { return a.WriteRecord(ctx, over, old.Version, w2, keep) },
		func(ctx context.Context) error { return a.DeleteRecord(ctx, gone, doomed.Version) },
		func(ctx context.Context) error { _, err := a.ReadRecord(ctx, over); return err },
		func(ctx context.Context) error { _, err := a.ListRecords(ctx, e.prefix, lock.Page{}); return err },
	)
	// Whoever writes next over what it has read makes an end of late copies.
	for name, unsure := range map[lock.Resource]lock.Record{fresh: w1, over: w2} {
		var is, next lock.Record
		e.eventually("another write comes through", func() bool {
			is, next = b.read(name), recordOf("another")
			if is.Version != unsure.Version && is.Version != map[lock.Resource]string{over: old.Version}[name] {
				e.Fatalf("the record of %q is %q, which nobody wrote", name, is.Version)
			}
			err := e.answered(func() error { return b.WriteRecord(e.ctx, name, is.Version, next, keep) })
			if err != nil && !errors.Is(err, lock.ErrRecordChanged) {
				e.Fatalf("WriteRecord: %v", err)
			}
			return err == nil
		})
		e.changed("the unsure write again", e.answered(func() error {
			return a.WriteRecord(e.ctx, name, is.Version, unsure, keep)
		}))
		e.answered(func() error { return a.b.Ping(e.ctx) })
		b.has(name, &next)
		a.remove(name, next.Version)
	}
	a.remove(gone, doomed.Version)
	b.has(gone, nil)
}

// forgetful is a Restarter whose server may come back without its data.
type forgetful interface{ Forgets() bool }

// keptThroughEnd writes records, and checks after the end of the server that what was written is
// there, unless the next one has forgotten. What is over meanwhile is not.
func (e *env) keptThroughEnd(forgets bool) (check func()) {
	e.Helper()
	a := e.recorder()
	name, brief := e.name("record"), e.name("brief")
	rec := a.write(name, "", recordOf("kept"))
	written := time.Now()
	if err := a.WriteRecord(e.ctx, brief, "", recordOf(""), lock.MinKeep); err != nil {
		e.Fatalf("WriteRecord: %v", err)
	}
	return func() {
		e.Helper()
		b := e.recorder()
		is := b.read(name)
		if !forgets && is.Version == "" {
			e.Error("the record is gone")
		}
		if is.Version != "" {
			b.has(name, &rec)
			if is.Age < 0 || is.Age > time.Since(written)+slack {
				e.Errorf("the record of %s ago has the age %s", time.Since(written), is.Age)
			}
		}
		e.eventually("the brief record is gone", func() bool { return b.read(brief).Version == "" })
		next := a.write(name, is.Version, recordOf("next"))
		b.has(name, &next)
		a.remove(name, next.Version)
	}
}
