package embedded

import "github.com/locksidecar/locksidecar/lock"

// eventBuffer is how many events wait in the channel itself. Only a reader that
// falls behind by more costs a goroutine, until it has caught up.
const eventBuffer = 8

// tell sends an event without waiting for the reader, in order. The store's
// mutex is held.
func (l *lease) tell(ev lock.Event) {
	if l.over {
		return
	}
	if l.pending == nil {
		select {
		case l.events <- ev:
			return
		default:
		}
		l.pump.Go(l.deliver)
	}
	l.pending = append(l.pending, ev)
}

// deliver sends what is pending, until nothing is or the lease is closed.
func (l *lease) deliver() {
	for {
		l.store.mu.Lock()
		if len(l.pending) == 0 {
			l.pending = nil
			l.store.mu.Unlock()
			return
		}
		ev := l.pending[0]
		l.pending = l.pending[1:]
		l.store.mu.Unlock()
		select {
		case l.events <- ev:
		case <-l.done:
			return
		}
	}
}
