package localapi

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// oneConn is a listener that has one connection for its server.
type oneConn struct {
	c    chan net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (*oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "one", Net: "unix"} }

// TestFrozenGRPCClientKeepsItsConnection: a client that is frozen answers nothing, also no ping of gRPC. Its connection stays, and so do
// its locks.
func TestFrozenGRPCClientKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grpc.NewServer(grpcOptions(Options{}.withDefaults().Limits)...)
		l := &oneConn{c: make(chan net.Conn, 1), done: make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- g.Serve(l) }()
		client, server := net.Pipe()
		l.c <- server
		frames := http2.NewFramer(client, client)
		closed := make(chan error, 1)
		go func() { // what the kernel keeps for a frozen client
			_, err := io.Copy(io.Discard, client)
			closed <- err
		}()
		if _, err := io.WriteString(client, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := frames.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		select {
		case err := <-closed:
			t.Errorf("closed: %v", err)
		default:
		}
		_ = client.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
