// Package zksession is a client of ZooKeeper for exactly one session.
//
// A lock lives as long as the session that made its node, so whoever keeps locks
// must know of every request in which session it was sent, whether it was sent
// at all, and that nothing is ever sent in another session. That is what this
// package is for, and where it differs from a general client such as
// github.com/go-zookeeper/zk (v1.0.4, conn.go):
//
//   - A session that has expired is over. The general client opens another one
//     by itself and sends there what was waiting.
//   - Requests that are sent together reach the server together and in order, so
//     that creating a node and listing its siblings is one round trip.
//   - A request that is not answered in time ends the connection, not just the
//     wait: after that it is known that its outcome is unknown, no answer comes
//     later, and the session moves on to another server well before it expires.
//   - A request that could not be sent is told apart from one whose answer was
//     lost ([ErrNotSent], [ErrLost]).
//   - Nothing keeps the session alive unless it is asked to.
//
// It speaks the protocol of ZooKeeper 3.5.3 and later.
package zksession
