package lock

import "context"

// QueuedKey is the key of a value in the ctx of an Acquire: a func() by which it hears of Queued. It is
// called by any goroutine, any number of times, also after the call; it must not block.
type QueuedKey struct{}

// Queued says that what is asked for from now on comes behind the request of an Acquire: the request
// stands in the store's queue, or on the way there where none overtakes it. So requests that
// must keep their order need not wait for one another's answers.
func Queued(ctx context.Context) {
	if f, ok := ctx.Value(QueuedKey{}).(func()); ok {
		f()
	}
}
