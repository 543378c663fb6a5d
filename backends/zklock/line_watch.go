package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
)

// look reads and watches the node that the first of ours waits for.
func (l *line) look(b node) error {
	d := l.d
	l.watch(b.name)
	l.suspect, l.deleted = false, false
	c := zksession.Watch(l.path + "/" + b.name)
	if err := l.unlocked(func() error { return d.ask(d.run, c) }); err != nil {
		return err
	}
	switch {
	case errors.Is(c.Err, zksession.ErrNoNode):
		l.gone(b)
		l.unlisted = true
		return nil
	case errors.Is(c.Err, zksession.ErrNoAuth): // another's node that we may not read is in our way all the same
		return nil
	case c.Err != nil:
		return c.Err
	}
	if b.kept {
		l.foundLeft(b, c)
	}
	rec, _ := decodeRecord(c.Data)
	if rec.Downgraded {
		l.downgraded = b.name
	}
	if rec.Slot != nil {
		l.granted = b.name
	}
	if grace, known := rec.known(); known && !b.kept {
		l.endAfter(b, grace)
	}
	return nil
}

// watch notes which node is waited for; empty: none. d.mu is held.
func (l *line) watch(name string) {
	if l.watching == name {
		return
	}
	if l.watching != "" {
		l.d.leaseNode.unsubscribe(l.path+"/"+l.watching, l)
	}
	if l.watching = name; name != "" {
		l.d.leaseNode.subscribe(l.path+"/"+name, l)
	}
}

// changed is called when the node that the first of ours waits for was changed or
// deleted.
func (l *line) changed(deleted bool) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.suspect, l.deleted = true, deleted
	l.poke()
}

// endAfter deletes the node in our way when its forced release is over: whoever
// forced it may be gone, and so may the holder's sidecar after it has written that
// it knows. d.mu is held.
func (l *line) endAfter(b node, grace time.Duration) {
	d := l.d
	until := d.b.clock() + grace
	if l.doomed == b.name && l.doom <= until {
		return
	}
	l.doomed, l.doom = b.name, until
	d.do(func(ctx context.Context) {
		if !leasekit.Sleep(ctx, grace) || d.set.Overdue() {
			return
		}
		d.mu.Lock()
		_, there := l.find(b.name, b.seq, b.shared)
		due := there && l.doomed == b.name && l.doom <= until
		l.doomed = "" // should it not work, it begins again
		d.mu.Unlock()
		if due {
			_ = d.leaseNode.removeAll(ctx, l.resource, l.path, b)
			d.mu.Lock()
			l.suspect = true
			l.poke()
			d.mu.Unlock()
		}
	})
}
