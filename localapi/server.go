// Package localapi is how apps reach the sidecar: lines of JSON, gRPC and HTTP/JSON on
// one Unix socket.
//
// The server accepts a connection, identifies the peer (peercred), and recognises the
// protocol by the first bytes (sniff). Then serveLines, grpc-go or net/http serves the
// connection. All of them call the same service. Its errors become API errors in errors.go.
package localapi

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/workers"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// Keys of the log lines.
const (
	keyAccount   = "service_account"
	keyCount     = "count"
	keyError     = "error"
	keyLockIDs   = "lock_ids"
	keyIn        = "in"
	keyMethod    = "method"
	keyPID       = "pid"
	keyPrincipal = "principal"
	keyResource  = "resource"
	keySpace     = "space"
	keySocket    = "socket"
	keyUID       = "uid"
)

const (
	// stopLimit is how long calls in flight may take to end when the server stops.
	stopLimit = 2 * time.Second

	// Buffers of a gRPC connection: messages are small, and an idle connection
	// should cost little. (gRPC keeps a write buffer only while it writes.)
	grpcReadBuffer  = 4 << 10
	grpcWriteBuffer = 16 << 10
	// grpcWindow is what a stream may have in flight, and so what a client can leave
	// in memory of a stream whose requests are not taken. A fixed one saves the
	// pings by which gRPC measures a network, where there is none. A larger message
	// gets its window when it comes.
	grpcWindow = 64 << 10
	// maxStreams bounds the calls at a time on one connection. A client that asks for
	// more is not told, but waits until one has ended. Those that answer with a
	// stream may last for ever, so they are fewer, and one too many is refused.
	maxStreams   = 1024
	maxLongCalls = 1000
)

// Server is the local API.
type Server struct {
	o         Options
	grpcConns *queueListener
	httpConns *queueListener
	places    *places // of connections
	asides    asides
	refusals  *refusals
	watches   *shared
	unread    *unread
	cutOffs   cutOffs
	standing  atomic.Int32 // streams whose client does not read
	listening chan struct{}
	entering  sync.Mutex     // orders running.Add by HTTP handlers before the end of stopping
	running   sync.WaitGroup // what Run waits for
	workers   *workers.Pool  // for the requests of Session streams
	turns     *turns

	stopping context.Context //nolint:containedctx // ends when Run begins to stop; handlers end by it
	stop     context.CancelCauseFunc
}

// New makes a Server. Nothing happens until Run.
func New(o Options) *Server {
	o = o.withDefaults()
	l := &o.Limits
	s := &Server{
		o:         o,
		places:    newPlaces(l.Connections, each(l.ConnectionsPerUID, l.PerAccount.Connections, l.PerSpace.Connections)),
		asides:    asides{of: make(map[session.Principal]int)},
		watches:   &shared{tally: newTally("watches", each(l.WatchesPerUID, l.PerAccount.Watches, l.PerSpace.Watches))},
		unread:    newUnread(),
		cutOffs:   cutOffs{of: make(map[int32]int)},
		listening: make(chan struct{}),
	}
	addr := &net.UnixAddr{Name: o.Socket, Net: "unix"}
	s.grpcConns, s.httpConns = newQueueListener(addr), newQueueListener(addr)
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	s.refusals = &refusals{s: s, of: make(map[refusedFor]*turnedAway)}
	s.workers = workers.New()
	s.turns = &turns{run: s.workers.Run}
	return s
}

// Listening is closed when clients can connect.
func (s *Server) Listening() <-chan struct{} { return s.listening }

// Run serves until ctx ends; then it ends the calls in flight, removes the
// socket and returns nil. It is called once.
// ErrSocketInUse: another sidecar serves the socket.
func (s *Server) Run(ctx context.Context) error {
	defer s.beginStop()
	watcher, err := peercred.NewWatcher()
	if err != nil {
		return err
	}
	take := listen
	if s.o.Replace {
		take = replace
	}
	socket, err := take(ctx, s.o.Socket, s.o.Mode)
	if err != nil {
		watcher.Close()
		return err
	}
	api := &service{Server: s}
	grpcServer := s.newGRPC(api)
	httpServer := s.newHTTP(api)

	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	failed := make(chan error, 3)
	var servers, watch sync.WaitGroup
	watch.Go(func() { failed <- watcher.Run(watching) })
	servers.Go(func() { failed <- grpcServer.Serve(s.grpcConns) })
	servers.Go(func() { failed <- httpServer.Serve(s.httpConns) })
	door := &door{s: s, enter: func(l *socketFile) { s.accept(s.stopping, l.UnixListener, watcher, nil) }}
	err = door.open(socket)
	watch.Go(func() { door.watch(s.stopping) })
	side := s.openSideDoors(door, func(l *socketFile) { s.accept(s.stopping, l.UnixListener, watcher, newPace()) })
	close(s.listening)
	s.o.Logger.Info("serving", keySocket, s.o.Socket)

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.beginStop()
	err = errors.Join(err, door.close())
	side.close()
	s.stopServers(context.WithoutCancel(ctx), grpcServer, httpServer)
	servers.Wait()
	s.running.Wait()
	s.workers.Close()
	stopWatching()
	watch.Wait()
	return err
}

// beginStop ends stopping. No HTTP handler begins after it returns.
func (s *Server) beginStop() {
	s.entering.Lock()
	defer s.entering.Unlock()
	s.stop(session.ErrDraining)
}

// stopServers lets the calls in flight end, which stopping has told to, and ends
// them after stopLimit.
func (s *Server) stopServers(ctx context.Context, g *grpc.Server, h *http.Server) {
	limit, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		kill := context.AfterFunc(limit, g.Stop)
		defer kill()
		g.GracefulStop()
	})
	both.Go(func() {
		if err := h.Shutdown(limit); err != nil {
			_ = h.Close()
		}
	})
	both.Wait()
	_ = s.grpcConns.Close()
	_ = s.httpConns.Close()
}

func (s *Server) newGRPC(api *service) *grpc.Server {
	g := grpc.NewServer(append(grpcOptions(s.o.Limits),
		grpc.Creds(unixCredentials{}),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnaryInterceptor(s.unaryEdge),
		grpc.StreamInterceptor(s.streamEdge),
	)...)
	pb.RegisterLockSidecarServer(g, api)
	healthpb.RegisterHealthServer(g, &health{Server: s})
	reflection.Register(g)
	return g
}

// grpcOptions are how gRPC treats connections, whatever they carry.
func grpcOptions(l Limits) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(l.Handshake),
		grpc.MaxRecvMsgSize(l.MessageBytes),
		grpc.MaxHeaderListSize(uint32(l.HeaderBytes)), //nolint:gosec // an option of kilobytes
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ReadBufferSize(grpcReadBuffer),
		grpc.WriteBufferSize(grpcWriteBuffer),
		grpc.StaticStreamWindowSize(grpcWindow),
		grpc.StaticConnWindowSize(grpcWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		// The kernel says when the client has ended. One that does not answer pings is frozen, and keeps its locks.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: math.MaxInt64}),
		grpc.WaitForHandlers(true),
	}
}

// unaryEdge is where unary calls come in and their errors go out.
func (s *Server) unaryEdge(ctx context.Context, q any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	c, err := permit(ctx)
	if err != nil {
		return nil, s.edge(ctx, info.FullMethod, err)
	}
	s.places.enter(c)
	defer s.places.leave(c)
	a, err := next(s.continueGRPC(ctx), q)
	if err == nil {
		a, err = s.owe(c, a)
	}
	return a, s.edge(ctx, info.FullMethod, err)
}

// streamEdge is the same for streams. They end when the server stops; Session
// sees to that by itself.
func (s *Server) streamEdge(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx := st.Context()
	c, err := permit(ctx)
	if err != nil {
		return s.edge(ctx, info.FullMethod, err)
	}
	defer c.longCalls.Add(-1)
	if c.longCalls.Add(1) > maxLongCalls {
		return s.edge(ctx, info.FullMethod, &session.LimitError{Limit: "streams of one connection", Max: maxLongCalls})
	}
	s.places.enter(c)
	defer s.places.leave(c)
	ctx = s.continueGRPC(ctx)
	if !info.IsClientStream {
		var cancel context.CancelFunc
		ctx, cancel = s.untilStop(ctx)
		defer cancel()
	}
	of := &streamOfCall{ServerStream: st, ctx: ctx}
	if info.FullMethod != methodSession { // which counts what is unsent by itself
		of.server, of.conn = s, c
	}
	return s.edge(ctx, info.FullMethod, next(srv, of))
}

// untilStop is ctx that also ends, with ErrDraining, when the server stops.
func (s *Server) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.stopping, func() { cancel(session.ErrDraining) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// edge gives a handler's error the form of the API.
func (s *Server) edge(ctx context.Context, method string, err error) error {
	if _, has := err.(interface{ GRPCStatus() *status.Status }); has || err == nil {
		return err
	}
	return status.FromProto(s.explain(ctx, method, err)).Err()
}

// explain is toStatus for a call. A call that was cancelled because the server
// stops says so, and the text of an error that toStatus does not know goes to
// the log.
func (s *Server) explain(ctx context.Context, method string, err error) *statuspb.Status {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), session.ErrDraining) {
		err = session.ErrDraining
	}
	if s.o.Failed != nil {
		s.o.Failed(err)
	}
	st := toStatus(err)
	switch {
	case errors.Is(err, errGone):
		s.o.Logger.Debug("the client has gone", keyMethod, method, keyError, err)
	case codes.Code(st.GetCode()) == codes.Internal: //nolint:gosec // a code
		s.o.Logger.Error("call failed", keyMethod, method, keyError, err)
	}
	return st
}

func (s *Server) newHTTP(api *service) *http.Server {
	l := s.o.Limits
	return &http.Server{
		Handler: s.tracked(s.continueHTTP(s.routes(api))),
		// OPTIONS * is refused like any other call that is not there.
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            l.Handshake,
		IdleTimeout:                  l.Idle,
		MaxHeaderBytes:               l.HeaderBytes,
		BaseContext:                  func(net.Listener) context.Context { return s.stopping },
		ConnContext:                  func(ctx context.Context, c net.Conn) context.Context { return c.(*conn).calls(ctx) }, //nolint:forcetypeassert // all come from greet
		ErrorLog:                     s.o.Logger.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}
