package localapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/locksidecar/locksidecar/internal/promptio"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// conn is one accepted connection, with what was found out about the peer.
type conn struct {
	*net.UnixConn
	credentials.CommonAuthInfo

	peer      *peercred.Peer
	principal string         // its name; empty: it is the uid
	account   string         // the service account of Kubernetes, as NAMESPACE/NAME; empty: it has none
	unknown   error          // why the principal, or its space, cannot be told: nothing is allowed
	space     *session.Space // that all calls are in; nil: unknown
	places    *places
	place     place
	counted   *unread
	unread    int // bytes of answers; this and the next are guarded by counted.mu
	forgotten bool
	allowed   bool
	sniffed   []byte           // read already, not yet given to the protocol's server
	socket    *promptio.Socket // reads and writes for the server of gRPC or HTTP; nil: it has none
	stalls    atomic.Int32     // streams that have ended because the client did not read
	longCalls atomic.Int32     // calls over gRPC that answer with a stream

	mu     sync.Mutex
	closed bool
	cut    bool               // closed because the client does not read
	hungUp bool               // the client sends no more, and reads no more as far as we know
	cancel context.CancelFunc // ends the calls; nil: there were none
	ignore func()             // ends the watch for a hang-up; nil: there is none
}

// Read gives first what the sniffer has read.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.sniffed) > 0 {
		n := copy(b, c.sniffed)
		c.sniffed = c.sniffed[n:]
		return n, nil
	}
	if c.socket != nil {
		return c.socket.Read(b)
	}
	return c.UnixConn.Read(b)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if c.socket != nil {
		return c.socket.Write(b)
	}
	return c.UnixConn.Write(b)
}

// Close closes the connection and ends its HTTP calls. Both protocol servers call
// it more than once.
func (c *conn) Close() error { return c.close(false) }

// cutOff is Close because the client does not read, see partingFrom.
func (c *conn) cutOff() error { return c.close(true) }

func (c *conn) close(cut bool) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed, c.cut = true, cut
	cancel, ignore := c.cancel, c.ignore
	c.mu.Unlock()
	if ignore != nil {
		ignore()
	}
	err := c.UnixConn.Close()
	if cancel != nil {
		cancel()
	}
	c.peer.Release()
	c.places.free(c)
	c.counted.forget(c)
	return err
}

func (c *conn) isCutOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

// listenForHangUp ends the calls when the client hangs up. net/http alone
// would see that only as long as the client sends nothing behind its request. It
// does not close the connection: requests that were sent before are answered.
func (c *conn) listenForHangUp(watch func(*net.UnixConn, func()) (stop func(), _ error)) error {
	ignore, err := watch(c.UnixConn, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hungUp = true
		if c.cancel != nil {
			c.cancel()
		}
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		ignore()
	} else {
		c.ignore = ignore
	}
	return nil
}

// calls is the context of all HTTP calls of c.
func (c *conn) calls(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(withConn(ctx, c))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
	if c.closed || c.hungUp {
		cancel()
	}
	return ctx
}

// AuthType makes a conn the credentials.AuthInfo of its gRPC calls.
func (c *conn) AuthType() string { return "SO_PEERCRED" }

// sessionPeer tells a session who its app is.
func (c *conn) sessionPeer() session.Peer {
	return session.Peer{UID: c.peer.UID, GID: c.peer.GID, PID: c.peer.PID, Principal: c.principal, Account: c.account, Gone: c.peer.Gone}
}

// strangers are all whose principal cannot be told. They count as one: by its uid, which
// a container may choose, each could have as many shares as there are users.
const strangers = "stranger:all"

// who is the principal that c counts for.
func (c *conn) who() session.Principal {
	p := c.sessionPeer()
	if c.unknown != nil {
		p.Principal = strangers
	}
	return p.Who()
}

// shares are whose limits c counts for, the principal first.
func (c *conn) shares() []session.Share {
	if c.unknown != nil {
		return session.Peer{Principal: strangers}.Shares(nil)
	}
	return c.sessionPeer().Shares(c.space)
}

// whois says in a log line who has connected.
func (c *conn) whois() []any {
	keys := []any{keyPID, c.peer.PID, keyUID, c.peer.UID}
	if c.principal != "" {
		keys = append(keys, keyPrincipal, c.principal)
	}
	if c.account != "" {
		keys = append(keys, keyAccount, c.account)
	}
	if c.space != nil && !c.space.Whole() {
		keys = append(keys, keySpace, c.space.Name())
	}
	return keys
}

// whoSays is the same in an error.
func (c *conn) whoSays() string {
	s := fmt.Sprintf("uid %d, gid %d", c.peer.UID, c.peer.GID)
	if c.principal != "" {
		s += ", " + c.principal
	}
	return s
}

// withConn makes c the one that connOf finds, as gRPC does for its calls.
func withConn(ctx context.Context, c *conn) context.Context {
	return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr(), AuthInfo: c})
}

// connOf is the connection that brought the call.
func connOf(ctx context.Context) (*conn, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(*conn); ok {
			return c, nil
		}
	}
	return nil, errors.New("the call came over no connection of this server")
}

// spaceOf is the space of names that a call is in.
func spaceOf(ctx context.Context) (*session.Space, error) {
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	return c.space, nil
}

// fly counts a call that asks the store without a session, until land is called. keeps: it keeps
// what there is, or lets go. *session.LimitError: too much is in flight.
func fly(ctx context.Context, keeps bool) (land func(), _ error) {
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	return c.space.Fly(c.sessionPeer(), keeps)
}

// permit is connOf, and refuses a peer that may not use the API.
func permit(ctx context.Context) (*conn, error) {
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case c.unknown != nil:
		return nil, refuse(reasonPermission, "%s may not use this sidecar: %v", c.whoSays(), c.unknown)
	case !c.allowed:
		return nil, refuse(reasonPermission, "%s may not use this sidecar", c.whoSays())
	}
	return c, nil
}

// unixCredentials makes gRPC hand the conn to its calls. There is nothing to
// shake hands about: the kernel has vouched for the peer.
type unixCredentials struct{}

func (unixCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ours, ok := c.(*conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the local API")
	}
	return c, ours, nil
}

func (unixCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("the local API is a server")
}

func (unixCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}
func (u unixCredentials) Clone() credentials.TransportCredentials { return u }
func (unixCredentials) OverrideServerName(string) error           { return nil }

// queueListener gives a protocol's server the connections that the sniffer
// found to be its own.
type queueListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newQueueListener(addr net.Addr) *queueListener {
	return &queueListener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *queueListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *queueListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *queueListener) Addr() net.Addr { return l.addr }

// give hands c over, or closes it when the server stops.
func (l *queueListener) give(c *conn) {
	_ = c.SetDeadline(time.Time{}) // the server sets its own
	if s, err := promptio.New(c.UnixConn); err == nil {
		c.socket = s
	}
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.Close()
	}
}
