package lock

import "context"

// Burst is what came from an app in one piece: requests that are handed over one after the other, without a wait in
// between. A driver lets those before the last one wait for it, and sends all together.
type Burst interface {
	// Later has f called, by any goroutine, when no other request is about to be handed over. It reports false, and f
	// is not called, where that is so already. f must not block.
	Later(f func()) bool
}

type burstKey struct{}

// WithBurst returns a ctx by which who works for a call learns that others come with it.
func WithBurst(ctx context.Context, b Burst) context.Context {
	return context.WithValue(ctx, burstKey{}, b)
}

// Later is that of the Burst of a call; false: it has none. Who works for the call must say by Blocking that it waits for
// the others: they may come by the same goroutine.
func Later(ctx context.Context, f func()) bool {
	b, ok := ctx.Value(burstKey{}).(Burst)
	return ok && b.Later(f)
}
