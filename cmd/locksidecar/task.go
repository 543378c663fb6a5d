package main

import "context"

// task is something that runs until it is told to stop.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
}

// start runs f beside the caller. The end of ctx does not stop it: what was
// started is stopped in its turn.
func start(ctx context.Context, f func(context.Context) error) *task {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = f(ctx)
	}()
	return t
}

// stop waits for the end and returns what f returned. A task that was never
// started (nil) has nothing to say.
func (t *task) stop() error {
	if t == nil {
		return nil
	}
	t.cancel()
	<-t.done
	return t.err
}

// ended is closed when the task has ended; never, where there is none.
func (t *task) ended() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.done
}
