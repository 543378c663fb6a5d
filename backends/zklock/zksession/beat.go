package zksession

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// ErrUnproven: the servers answer, but the connection changed too often to tell
// whether the session lives long enough.
var ErrUnproven = errors.New("the ZooKeeper session moves too often to be relied upon")

// maxMoves is how often one beat goes over to another connection.
const maxMoves = 2

// Beat keeps a lease's session alive. write is a write, or several, in this session.
// A nil error promises that the session lives for the TTL after the call: see proof.
// Otherwise the error is that of write, or ErrNotSent, ErrLost, ErrExpired, ErrClosed
// or ErrUnproven.
func (s *Session) Beat(ctx context.Context, write func(context.Context) error) error {
	since := s.cfg.Clock()
	for moves := 0; ; moves++ {
		l, err := s.connection(ctx)
		if err != nil {
			return err
		}
		b := answered{sent: s.cfg.Clock()}
		if err := write(ctx); err != nil {
			return err
		}
		b.at = s.cfg.Clock()
		if err := s.Do(ctx, flush()); err != nil {
			return err
		}
		if s.proof.beat(l, b, since) {
			return nil
		}
		if moves == maxMoves {
			return ErrUnproven
		}
		s.move(ctx, l)
	}
}

// flush is a sync that waits for nothing: it goes through the leader, behind all
// that its server has told the leader before. What it answers does not matter.
func flush() *Call {
	return &Call{name: "sync", path: "/", do: func(conn *zk.Conn) (a answer) {
		_, a.err = conn.Sync("/")
		return a
	}}
}

// touch is a write that changes nothing, for a session without a node of its own to
// write. Whatever the server says to it, it has asked a majority.
func (s *Session) touch(ctx context.Context) error {
	root := &Call{path: "/", Stat: Stat{Version: AnyVersion}}
	return s.Do(ctx, Multi(Check(root)))
}

// connection gives the connection that carries requests.
func (s *Session) connection(ctx context.Context) (*link, error) {
	limit := time.NewTimer(s.cfg.Timeout)
	defer limit.Stop()
	return s.ready(ctx, limit.C)
}

// move has the session go over to another connection, after the calls that are
// under way on this one.
func (s *Session) move(ctx context.Context, l *link) {
	s.mu.Lock()
	if s.link != l {
		s.mu.Unlock()
		return
	}
	s.link, s.up = nil, make(chan struct{})
	s.mu.Unlock()
	s.settle(ctx)
	l.cut()
}

// shortened takes the news that a server that is refused has made the session live
// until that time only, which may be less than the lease was promised. Another server
// makes it live as long as it must again. Where none does so in time, the session is
// given up while its nodes are still there, so that the lease's holders are told
// before others are granted. fresh: there is no session yet that could be lost.
func (s *Session) shortened(until time.Duration) (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.connected || s.err != nil {
		return !s.connected
	}
	if s.short != nil {
		s.short.Stop()
	}
	margin := max(s.cfg.TTL/10, 50*time.Millisecond)
	var mine *time.Timer
	mine = time.AfterFunc(until-margin-s.cfg.Clock(), func() {
		s.mu.Lock()
		due := s.short == mine
		s.mu.Unlock()
		if due {
			s.end(ErrExpired)
		}
	})
	s.short = mine
	return false
}
