package lock

import "context"

type blockingKey struct{}

// WithBlocking returns a ctx by which who works for a call says that it may block from
// now on. A goroutine that reads requests and carries them out itself can so leave the
// reading to another in time, and need not where the answer is at hand. f is called by
// any goroutine, any number of times, also after the call; it must not block.
func WithBlocking(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, blockingKey{}, f)
}

// Blocking says that the caller may block now, for a trip to the store or longer.
func Blocking(ctx context.Context) {
	if f, ok := ctx.Value(blockingKey{}).(func()); ok {
		f()
	}
}

// Prompt is a Lease that calls Blocking before it blocks, or before each trip; any other
// is taken to block in every call.
type Prompt interface {
	Lease
	TellsBlocking() bool
}

// TellsBlocking reports whether a lease calls Blocking.
func TellsBlocking(l Lease) bool {
	p, ok := l.(Prompt)
	return ok && p.TellsBlocking()
}
