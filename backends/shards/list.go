package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// patience is how much longer than for the first shard a list waits for the others.
const patience = time.Second

var errSlow = errors.New("it did not answer within a second after the others")

// List implements lock.Backend. Shards that do not answer are missing: the error is
// a *lock.PartialError. Of the pages of a list, one waits for a silent shard, and the others for 2 s do not.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	return merge(ctx, b, p, func(st lock.Status) lock.Resource { return st.Resource },
		func(ctx context.Context, s *shard, p lock.Page) ([]lock.Status, error) { return s.List(ctx, prefix, p) })
}

// merge asks all shards side by side for a page, and makes one of these.
func merge[T any](ctx context.Context, b *Backend, p lock.Page, name func(T) lock.Resource,
	list func(context.Context, *shard, lock.Page) ([]T, error),
) ([]T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(patience, func() { cancel(errSlow) })
	slow.Stop()
	defer slow.Stop()
	answered := sync.OnceFunc(func() { slow.Reset(patience) })
	pages := make([][]T, len(b.shards))
	began := b.o.Clock()
	errs := b.each(func(s *shard) error {
		if p.After != "" && began < time.Duration(s.listed.Load()) {
			return s.explain(errRests)
		}
		page, err := own(b, s, p, name, func(p lock.Page) ([]T, error) { return list(ctx, s, p) })
		if err != nil && context.Cause(ctx) == errSlow { //nolint:errorlint // it is that very one
			err = fmt.Errorf("%w: %w", lock.ErrUnavailable, errSlow)
		}
		b.note(&s.listed, began, err)
		if err != nil {
			return s.explain(err)
		}
		answered()
		pages[s.number] = page
		return nil
	})
	all := slices.Concat(pages...)
	slices.SortFunc(all, func(x, y T) int { return cmp.Compare(name(x), name(y)) })
	all = all[:min(len(all), p.Limit)]
	return all, b.missing(errs)
}

// own lists at one shard, as many as the page has room for, but leaves out what does not belong there: the
// record of the set, and what an earlier set of shards has left.
func own[T any](b *Backend, s *shard, p lock.Page, name func(T) lock.Resource, list func(lock.Page) ([]T, error)) ([]T, error) {
	var all []T
	for {
		page, err := list(p)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			if r := name(t); r != setName && b.of(r) == s {
				all = append(all, t)
			}
		}
		if len(page) < p.Limit || len(all) >= p.Limit {
			return all, nil
		}
		p.After = name(page[len(page)-1])
	}
}

// missing is nil where all have answered. Where none has, or one has said that the question is wrong, it
// is no *lock.PartialError.
func (b *Backend) missing(errs []error) error {
	partial := &lock.PartialError{}
	lacks := make([]bool, len(errs))
	for i, err := range errs {
		switch {
		case err == nil:
		case !errors.Is(err, lock.ErrUnavailable):
			return err
		default:
			lacks[i] = true
			partial.Missing = append(partial.Missing, b.shards[i].name)
		}
	}
	partial.Err = join(errs...)
	switch len(partial.Missing) {
	case 0:
		return nil
	case len(errs):
		return partial.Err
	}
	partial.Lacks = func(r lock.Resource) bool { return lacks[b.pick(r)] }
	return partial
}
