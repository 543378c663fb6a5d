package zksession

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Do carries out calls one after the other and waits for their answers. Each
// has its own Err; one that the server refuses does not keep the next from being
// sent. What Do returns is an error of the session and not of the server:
// ErrNotSent, ErrLost, ErrExpired or ErrClosed. That call and those behind it
// have it too. When ctx ends first, it is ErrLost or ErrNotSent.
func (s *Session) Do(ctx context.Context, calls ...*Call) error {
	for i, c := range calls {
		s.one(ctx, c)
		if err := lost(c.Err); err != nil {
			failAll(calls[i+1:], err)
			return err
		}
	}
	return nil
}

// failAll gives calls an error that are not carried out.
func failAll(calls []*Call, err error) {
	for _, c := range calls {
		c.fail(err)
	}
}

// atOnce is how many calls of one Together are under way at a time.
const atOnce = 64

// Together carries out calls at the same time, in no order. The error is as
// that of Do, of one of them.
func (s *Session) Together(ctx context.Context, calls ...*Call) error {
	var all sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for _, c := range calls[1:] {
		free <- struct{}{}
		all.Go(func() {
			s.one(ctx, c)
			<-free
		})
	}
	s.one(ctx, calls[0])
	all.Wait()
	for _, c := range calls {
		if err := lost(c.Err); err != nil {
			return err
		}
	}
	return nil
}

// one carries out a call.
func (s *Session) one(ctx context.Context, c *Call) {
	if a := s.start(ctx, c); a != nil {
		a.wait(ctx)
	}
}

// asking is a call that the library has.
type asking struct {
	s        *Session
	c        *Call
	l        *link
	watch    *watch // nil: it watches nothing
	limit    *time.Timer
	began    time.Time
	result   chan answer
	finished chan struct{}
}

// start gives a call to the library; nil when it has ended before that.
func (s *Session) start(ctx context.Context, c *Call) *asking {
	a := &asking{s: s, c: c, limit: time.NewTimer(s.cfg.Timeout), result: make(chan answer, 1), finished: make(chan struct{})}
	if c.watches {
		a.watch = s.watch(c)
	}
	if err := a.start(ctx); err != nil {
		a.limit.Stop()
		c.fail(err)
		return nil
	}
	return a
}

func (a *asking) start(ctx context.Context) error {
	s := a.s
	if a.c.ordered && !s.settled(ctx, a.limit.C) {
		return ErrNotSent
	}
	var err error
	if a.l, err = s.ready(ctx, a.limit.C); err != nil {
		return err
	}
	a.began = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil { // routines may be waited for already
		return s.err
	}
	s.flying++
	s.routines.Go(func() {
		defer close(a.finished)
		a.result <- a.c.do(s.conn)
		s.landed()
	})
	return nil
}

// landed notes that the library has ended a call.
func (s *Session) landed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flying--; s.flying == 0 && s.calm != nil {
		close(s.calm)
		s.calm = nil
	}
}

// wait waits for the answer.
func (a *asking) wait(ctx context.Context) {
	s, c := a.s, a.c
	defer a.limit.Stop()
	select {
	case r := <-a.result:
		c.take(r)
	case <-ctx.Done():
		c.fail(fmt.Errorf("%w: %w", ErrLost, context.Cause(ctx)))
		s.leave(a.finished)
	case <-a.limit.C:
		a.l.cut()
		select { // with the connection gone, the library knows soon
		case r := <-a.result:
			c.take(r)
		case <-time.After(s.cfg.Timeout / 4):
			c.fail(ErrLost)
			s.leave(a.finished)
		}
	}
	if c.makes && c.Err == nil {
		c.Stat.Czxid = a.l.births.take(c.Path)
	}
	if s.cfg.Observe != nil {
		s.cfg.Observe(c.name, time.Since(a.began), observed(c.Err))
	}
	switch {
	case c.Err == ErrExpired: //nolint:errorlint // set by take, never wrapped
		s.end(ErrExpired)
	case c.Err != nil && s.Err() != nil:
		c.fail(s.Err())
	}
	if a.watch != nil {
		s.watched(c, a.watch)
	}
}

// Chase carries out calls like Do, but sends each as soon as the one before is on its
// way, and not when that is answered: a server carries out the requests of a connection in
// their order, so each finds what those before it have done, in the same round trip. All but
// the last must be Creates, or a Multi that begins with one. Where one of them has no
// good answer, what comes behind it says nothing about it.
func (s *Session) Chase(ctx context.Context, calls ...*Call) error {
	all := make([]*asking, 0, len(calls))
	for i, c := range calls {
		a := s.send(ctx, c, i < len(calls)-1)
		if a == nil {
			failAll(calls[i+1:], c.Err)
			break
		}
		all = append(all, a)
	}
	for _, a := range all {
		a.wait(ctx)
	}
	for _, c := range calls {
		if err := lost(c.Err); err != nil {
			return err
		}
	}
	return nil
}

// send gives a call to the library; nil when it has ended before that. With follow it returns
// when the call is on its way, or never will be.
func (s *Session) send(ctx context.Context, c *Call, follow bool) *asking {
	if !follow {
		return s.start(ctx, c)
	}
	written := make(chan struct{})
	s.mu.Lock()
	s.chased[c.path] = written
	s.mu.Unlock()
	a := s.start(ctx, c)
	if a != nil {
		select {
		case <-written:
		case <-a.finished:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	delete(s.chased, c.path)
	s.mu.Unlock()
	return a
}

// wrote is told that the library has written a request that makes a node.
func (s *Session) wrote(path []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if written, ok := s.chased[string(path)]; ok {
		delete(s.chased, string(path))
		close(written)
	}
}

// leave remembers a call whose caller waits no longer.
func (s *Session) leave(finished chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.left { // those that are over are forgotten by and by
		select {
		case <-f:
			delete(s.left, f)
		default:
		}
	}
	s.left[finished] = struct{}{}
}

// settled waits until the calls that were left are over.
func (s *Session) settled(ctx context.Context, limit <-chan time.Time) bool {
	s.mu.Lock()
	var left []chan struct{}
	for f := range s.left {
		left = append(left, f)
	}
	if len(left) > 0 { // they end when there is a connection
		s.want(1)
		defer s.unwant()
	}
	s.mu.Unlock()
	for _, f := range left {
		select {
		case <-f:
		case <-ctx.Done():
			return false
		case <-limit:
			return false
		}
	}
	return true
}

// ready waits for a connection that may carry a request.
func (s *Session) ready(ctx context.Context, limit <-chan time.Time) (*link, error) {
	s.mu.Lock()
	s.asked = time.Now()
	over := s.closing && s.err == nil
	s.mu.Unlock()
	if over {
		return nil, ErrClosed
	}
	return s.wait(ctx, limit)
}

// wait waits for a connection, which the session may not have by itself.
func (s *Session) wait(ctx context.Context, limit <-chan time.Time) (*link, error) {
	for wanted := false; ; wanted = true {
		s.mu.Lock()
		l, up, err := s.link, s.up, s.err
		if l == nil && err == nil && !wanted {
			s.want(1)
			defer s.unwant()
		}
		s.mu.Unlock()
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-up:
		case <-s.done:
		case <-limit:
			return nil, ErrNotSent
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
		}
	}
}

// want says that a connection is waited for. s.mu is held.
func (s *Session) want(n int) {
	s.wanting += n
	s.servers.poke()
}

func (s *Session) unwant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want(-1)
}
