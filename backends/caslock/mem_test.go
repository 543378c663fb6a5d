package caslock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
)

// memory is the least that a Store can be: a map. Many backends share one, each through a
// road of its own.
type memory struct {
	mu       sync.Mutex
	server   string
	revision int64
	kvs      map[string]KV
	keys     []string // of kvs, in order
	watches  map[*memoryWatch]bool
	cuts     chan struct{} // closed when all connections are cut
}

type memoryWatch struct {
	prefix string
	news   chan KV
}

func newMemory() *memory {
	return &memory{kvs: make(map[string]KV), watches: make(map[*memoryWatch]bool), cuts: make(chan struct{}), server: "memory", revision: 1}
}

func (m *memory) do(t Txn) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Result{Done: m.holds(t.If), Server: m.server}
	then := t.Then
	if !r.Done {
		r.Else = t.Else != nil && m.holds(t.Else.If)
		then = nil
		if r.Else {
			then = t.Else.Then
		}
	}
	if len(then) > 0 {
		m.revision++
		for _, w := range then {
			m.write(w)
		}
	}
	r.Revision = m.revision
	for _, g := range t.Read {
		end := g.End
		if end == "" {
			end = g.Key + "\x00"
		}
		from, _ := slices.BinarySearch(m.keys, g.Key)
		to, _ := slices.BinarySearch(m.keys, end)
		to = max(from, to)
		f := Found{Count: to - from}
		if !g.Count {
			if g.Limit > 0 {
				to = min(to, from+g.Limit)
			}
			for _, k := range m.keys[from:to] {
				f.KVs = append(f.KVs, m.kvs[k])
			}
		}
		r.Reads = append(r.Reads, f)
	}
	return r
}

// holds tells whether all conditions do.
func (m *memory) holds(all []Cond) bool {
	for _, c := range all {
		kv, there := m.kvs[c.Key]
		if c.There && !there || !c.There && kv.Version != c.Version {
			return false
		}
	}
	return true
}

// backup gives what has the store be as it is now.
func (m *memory) backup() (restore func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	revision, kvs, keys := m.revision, maps.Clone(m.kvs), slices.Clone(m.keys)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.revision, m.kvs, m.keys = revision, maps.Clone(kvs), slices.Clone(keys)
	}
}

// cut ends all watches.
func (m *memory) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.cuts)
	m.cuts = make(chan struct{})
}

func (m *memory) write(w Write) {
	i, there := slices.BinarySearch(m.keys, w.Key)
	kv := KV{Key: w.Key, Value: w.Value, Version: m.revision}
	switch {
	case w.Delete && !there:
		return
	case w.Delete:
		m.keys = slices.Delete(m.keys, i, i+1)
		delete(m.kvs, w.Key)
		kv = KV{Key: w.Key}
	case !there:
		m.keys = slices.Insert(m.keys, i, w.Key)
		fallthrough
	default:
		m.kvs[w.Key] = kv
	}
	for watch := range m.watches {
		if strings.HasPrefix(w.Key, watch.prefix) {
			select {
			case watch.news <- kv:
			default: // nobody listens
			}
		}
	}
}

// road is one backend's way to a memory.
type road struct {
	m *memory

	mu    sync.Mutex
	deaf  chan struct{} // closed when answers come again; nil: they come
	muted bool
	copy  func(Txn) (lost bool) // sees what is sent; nil: nobody does
}

func (r *road) Do(ctx context.Context, t Txn) (Result, error) {
	if len(t.If) > MaxParts || len(t.Then)+len(t.Read) > MaxParts { // as etcd counts
		return Result{}, errors.New("too many parts")
	}
	seen := make(map[string]bool)
	for _, w := range t.Then {
		if seen[w.Key] {
			return Result{}, errors.New("a key twice")
		}
		seen[w.Key] = true
	}
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	r.mu.Lock()
	deaf := r.deaf
	lost := r.copy != nil && r.copy(t)
	r.mu.Unlock()
	if lost {
		return Result{}, errors.New("it is on its way")
	}
	answer := r.m.do(t)
	if deaf == nil {
		return answer, nil
	}
	select {
	case <-deaf:
		return Result{}, errors.New("the connection was cut")
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

func (r *road) Watch(ctx context.Context, prefix string, ready func(), changed func(KV)) error {
	w := &memoryWatch{prefix: prefix, news: make(chan KV, 1<<16)}
	r.m.mu.Lock()
	r.m.watches[w] = true
	cut := r.m.cuts
	r.m.mu.Unlock()
	defer func() {
		r.m.mu.Lock()
		defer r.m.mu.Unlock()
		delete(r.m.watches, w)
	}()
	r.tell(ready)
	for {
		select {
		case kv := <-w.news:
			r.tell(func() { changed(kv) })
		case <-cut:
			return errors.New("the connection was cut")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *road) tell(f func()) {
	r.mu.Lock()
	silent := r.muted || r.deaf != nil
	r.mu.Unlock()
	if !silent {
		f()
	}
}

func (*road) Hint(error) string { return "" }
func (*road) Close() error      { return nil }
