// Package zksession is the sessions of a lease in ZooKeeper ([Sessions]), each by
// github.com/go-zookeeper/zk ([Session]).
//
// A lock lives as long as the session that made its node, so whoever keeps locks
// must know in which session a request was sent, whether it was sent at all, and
// that nothing is ever sent in another session. The library (v1.0.4, conn.go) is
// made for clients that do not care; what it lacks is added around it, through
// its own dialer and host provider:
//
//   - When a session has expired, the library opens another one by itself and
//     sends there what was waiting. Here the answer that says so is seen before
//     the library acts on it (link.go), and after it nothing is dialled any more.
//   - It pings, so that a session lives as long as the process and its connection
//     do. A lease must live by its heartbeats alone: pings are held back.
//   - It waits for an answer as long as the connection lives. Here a request that
//     is not answered in time ends the connection, so that the session moves on
//     to another server well before it expires.
//   - A request that it has accepted while there was no connection is sent when
//     there is one. Here requests wait outside until there is a connection, and
//     what may still be inside is waited for before the server is asked what has
//     become of it ([Sync]).
//   - On a new connection it asks for its watches while it takes answers already, and so
//     may never hear of what happened before. Here watches are kept beside it (watches.go).
//   - It does not tell the session timeout that the server has granted, nor the
//     transaction that made a node (births.go).
package zksession
