package localapi

import (
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/lock"
)

// burst are the requests that a client has written in one piece, for as long as the receiver hands them over. It
// goes on while another one is there already, and ends before the receiver waits for anything.
type burst struct {
	mu     sync.Mutex
	goesOn atomic.Bool // changes under mu
	ends   []func()    // to be called at the end
	called []func()    // the receiver's: its memory is used again
}

var _ lock.Burst = (*burst)(nil)

// Later implements lock.Burst.
func (b *burst) Later(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := b.goesOn.Load()
	if more {
		b.ends = append(b.ends, f)
	}
	return more
}

// next notes that the receiver hands a request over, and whether more are there.
func (b *burst) next(more bool) {
	if b.goesOn.Load() == more { // nobody but the receiver changes it
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.goesOn.Store(more)
}

// end is called by the receiver.
func (b *burst) end() {
	b.mu.Lock()
	b.goesOn.Store(false)
	b.called, b.ends = b.ends, b.called[:0]
	b.mu.Unlock()
	for _, f := range b.called {
		f()
	}
	clear(b.called)
}
