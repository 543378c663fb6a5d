package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/backends/storeurl"
)

// member is a connection to one member of a cluster. It connects, and connects again, when
// it is asked something.
type member struct {
	conn  *grpc.ClientConn
	token string // of the user; empty: none is needed
}

const (
	// A connection on which an answer is due, and nothing has come for so long, is asked for a sign of
	// life. gRPC asks no more often, and servers end a connection that asks while no answer is due.
	aliveEvery = 10 * time.Second
	// How long it takes to connect again, at least and at most.
	leastBackoff, mostBackoff = 20 * time.Millisecond, time.Second
)

// newMember makes a connection to the member at addr, without a user.
func newMember(addr string, cfg config) (*member, error) {
	creds := insecure.NewCredentials()
	if c := cfg.tls.Config(); c != nil {
		creds = credentials.NewTLS(c)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveEvery, Timeout: cfg.timeout}),
		grpc.WithNoProxy(), // no store is reached through one
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: leastBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostBackoff},
			MinConnectTimeout: cfg.timeout,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(asItIs{}), grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		return nil, err
	}
	return &member{conn: conn}, nil
}

// asItIs is a codec for messages that are written and read elsewhere.
type asItIs struct{}

// Name implements encoding.Codec: it is what Protocol Buffers are called.
func (asItIs) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (asItIs) Marshal(v any) ([]byte, error) { return v.(message), nil }

// Unmarshal implements encoding.Codec. data is not used by anybody else.
func (asItIs) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

// login gets a token, for the requests that come later, if the server has users.
func (m *member) login(ctx context.Context, cfg config) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.timeout)
	defer cancel()
	answer, err := m.ask(ctx, callAuthenticate, authenticateRequest(cfg.user, storeurl.PasswordNow(cfg.password, cfg.passwordFile)))
	switch {
	case errors.Is(err, errAuthNotEnabled):
		return nil
	case err != nil:
		return err
	}
	m.token, err = authenticateResponse(answer)
	return err
}

// ask sends a request and gives the answer. An error that etcd has answered with is a refusal.
func (m *member) ask(ctx context.Context, call string, request message) (answer []byte, err error) {
	if err := m.conn.Invoke(m.identified(ctx), call, request, &answer); err != nil {
		return nil, explained(ctx, err)
	}
	return answer, nil
}

// watch sends a watchRequest, and calls told with each answer until that or the watch fails,
// or ctx ends.
func (m *member) watch(ctx context.Context, request message, told func(answer []byte) error) error {
	// A member that is cut off from the majority ends the watch.
	asking := metadata.AppendToOutgoingContext(m.identified(ctx), "hasleader", "true")
	stream, err := m.conn.NewStream(asking, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, callWatch)
	if err != nil {
		return explained(ctx, err)
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // the reason of an EOF is in the answer
		return explained(ctx, err)
	}
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			return explained(ctx, err)
		}
		if err := told(answer); err != nil {
			return err
		}
	}
}

// identified is ctx for a request of the user.
func (m *member) identified(ctx context.Context) context.Context {
	if m.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "token", m.token)
}

func (m *member) close() error { return m.conn.Close() }

// refusal is an error that etcd has answered with, in its words.
type refusal string

func (r refusal) Error() string { return string(r) }

// The refusals that mean something here.
const (
	errNoSpace          refusal = "etcdserver: mvcc: database space exceeded"
	errPermissionDenied refusal = "etcdserver: permission denied"
	errTooManyOps       refusal = "etcdserver: too many operations in txn request"
	errRequestTooLarge  refusal = "etcdserver: request is too large"
	errUserEmpty        refusal = "etcdserver: user name is empty"
	errInvalidAuthToken refusal = "etcdserver: invalid auth token" //nolint:gosec // no secret
	errAuthOldRevision  refusal = "etcdserver: revision of auth store is old"
	errAuthNotEnabled   refusal = "etcdserver: authentication is not enabled"
)

// explained is an error of gRPC, as a refusal, or with why ctx has ended.
func explained(ctx context.Context, err error) error {
	said := status.Convert(err).Message()
	switch {
	case strings.HasPrefix(said, "etcdserver: "):
		return refusal(said)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s", context.Cause(ctx), said)
	}
	return err
}

// voidToken tells whether a request was refused because its token is void.
func voidToken(err error) bool {
	return isOneOf(err, errInvalidAuthToken, errAuthOldRevision, errUserEmpty)
}

// onlyThisRequest tells whether an error is the answer to this one request. Others may be
// answered, and another member would say the same.
func onlyThisRequest(err error) bool {
	return isOneOf(err, errNoSpace, errPermissionDenied, errTooManyOps, errRequestTooLarge)
}

func isOneOf(err error, refusals ...refusal) bool {
	return slices.ContainsFunc(refusals, func(r refusal) bool { return errors.Is(err, r) })
}
