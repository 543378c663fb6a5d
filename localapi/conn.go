package localapi

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// conn is one accepted connection, with what was found out about the peer.
type conn struct {
	*net.UnixConn
	credentials.CommonAuthInfo

	peer    *peercred.Peer
	allowed bool

	sniffed []byte // read already, not yet given to the protocol's server
	onClose func()
	closing sync.Once
}

// Read gives first what the sniffer has read.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.sniffed) > 0 {
		n := copy(b, c.sniffed)
		c.sniffed = c.sniffed[n:]
		return n, nil
	}
	return c.UnixConn.Read(b)
}

// Close closes the connection. Both protocol servers call it more than once.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		err = c.UnixConn.Close()
		if c.peer != nil {
			c.peer.Release()
		}
		c.onClose()
	})
	return err
}

// AuthType makes a conn the credentials.AuthInfo of its gRPC calls.
func (c *conn) AuthType() string { return "SO_PEERCRED" }

// sessionPeer tells a session who its app is.
func (c *conn) sessionPeer() session.Peer {
	return session.Peer{UID: c.peer.UID, GID: c.peer.GID, PID: c.peer.PID, Gone: c.peer.Gone}
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

// permit refuses a peer that may not use the API.
func permit(ctx context.Context) error {
	c, err := connOf(ctx)
	if err != nil {
		return err
	}
	if !c.allowed {
		return refuse(reasonPermission, "uid %d, gid %d may not use this sidecar", c.peer.UID, c.peer.GID)
	}
	return nil
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
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.Close()
	}
}
