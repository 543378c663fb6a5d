package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
	"github.com/locksidecar/locksidecar/lock"
)

// script is a sidecar with one session, which says what a test makes it say, in
// that order.
type script struct {
	t       *testing.T
	session *client.Session
	asked   chan *pb.SessionRequest
	say     chan *pb.SessionResponse
}

const scriptMargin = 100 * time.Millisecond

func scripted(t *testing.T) *script {
	t.Helper()
	dir, err := os.MkdirTemp("", "lss")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, asked: make(chan *pb.SessionRequest, 100), say: make(chan *pb.SessionResponse)}
	var running sync.WaitGroup
	running.Go(func() { s.serve(l) })
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	c, err := client.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if s.session, err = c.OpenSession(t.Context(), client.SessionOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve answers the greeting, and serves one session.
func (s *script) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(c)
		if first, err := in.Peek(1); err == nil && first[0] == '{' {
			ctx, cancel := context.WithCancel(context.Background())
			_ = s.converse(&lines{ctx: ctx, cancel: cancel, c: c, in: in})
			cancel()
			_ = c.Close()
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		_ = c.Close()
	}
}

// lines is the sidecar's end of a connection.
type lines struct {
	ctx    context.Context
	cancel context.CancelFunc
	c      net.Conn
	in     *bufio.Reader
}

func (l *lines) recv() (*pb.SessionRequest, error) {
	line, err := l.in.ReadBytes('\n')
	if err != nil {
		l.cancel()
		return nil, err
	}
	return jsonlines.ParseRequest(line)
}

func (l *lines) send(a *pb.SessionResponse) error {
	line, err := jsonlines.Append(nil, a)
	if err == nil {
		_, err = l.c.Write(line)
	}
	return err
}

func (s *script) converse(st *lines) error {
	q, err := st.recv()
	if err != nil {
		return err
	}
	err = st.send(&pb.SessionResponse{RequestId: q.GetRequestId(), Response: &pb.SessionResponse_Opened{Opened: &pb.OpenSessionResponse{
		SessionId: "scripted", LeaseMargin: durationpb.New(scriptMargin), CountedAt: durationpb.New(lock.BootTime()),
	}}})
	if err != nil {
		return err
	}
	go func() { // ends with the stream
		for {
			q, err := st.recv()
			if err != nil {
				return
			}
			s.asked <- q
		}
	}()
	for {
		select {
		case a := <-s.say:
			if err := st.send(a); err != nil {
				return err
			}
		case <-st.ctx.Done():
			return nil
		}
	}
}

// next is the next request of the client.
func (s *script) next() *pb.SessionRequest {
	s.t.Helper()
	select {
	case q := <-s.asked:
		return q
	case <-time.After(patience):
		s.t.Fatal("the client has not asked in time")
		return nil
	}
}

func (s *script) tell(e *pb.Event) {
	s.say <- &pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: e}}
}

func (s *script) news(counted, validFor time.Duration) {
	s.tell(&pb.Event{Event: &pb.Event_Lease{Lease: &pb.LeaseNews{CountedAt: durationpb.New(counted), ValidFor: durationpb.New(validFor)}}})
}

func (s *script) lost(id string) { s.lostOf(id, id) }

func (s *script) grant(requestID, lockID string, counted, validFor time.Duration) {
	s.say <- &pb.SessionResponse{RequestId: requestID, Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{
		LockId: lockID, Resource: lockID, Mode: pb.Mode_EXCLUSIVE, Fence: 1, Count: 1, CountedAt: durationpb.New(counted), ValidFor: durationpb.New(validFor),
	}}}
}

func (s *script) released(requestID string) {
	s.say <- &pb.SessionResponse{RequestId: requestID, Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{}}}
}

func (s *script) refuse(requestID, reason string, metadata map[string]string) {
	s.t.Helper()
	info, err := anypb.New(&errdetails.ErrorInfo{Reason: reason, Domain: "locksidecar", Metadata: metadata})
	if err != nil {
		s.t.Fatal(err)
	}
	st := &statuspb.Status{Message: "refused: " + reason, Details: []*anypb.Any{info}}
	s.say <- &pb.SessionResponse{RequestId: requestID, Response: &pb.SessionResponse_Error{Error: st}}
}

// asking is an acquire in flight.
type asking struct {
	id     string
	cancel context.CancelFunc
	done   chan error
	lock   *client.Lock // valid after done
}

func (s *script) ask(resource string) *asking {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	a := &asking{cancel: cancel, done: make(chan error, 1)}
	go func() {
		var err error
		a.lock, err = s.session.Acquire(ctx, resource, client.AcquireOptions{Reentrant: true})
		a.done <- err
	}()
	a.id = s.next().GetRequestId()
	return a
}

func (s *script) got(a *asking) *client.Lock {
	s.t.Helper()
	select {
	case err := <-a.done:
		if err != nil {
			s.t.Fatal(err)
		}
	case <-time.After(patience):
		s.t.Fatal("the acquire has not returned in time")
	}
	return a.lock
}

// hold is a lock that the sidecar has just granted for so long.
func (s *script) hold(id string, validFor time.Duration) *client.Lock {
	s.t.Helper()
	a := s.ask(id)
	s.grant(a.id, id, lock.BootTime(), validFor)
	return s.got(a)
}

// read waits until the client has read everything that was said.
func (s *script) read() {
	s.t.Helper()
	a := s.ask("marker")
	s.refuse(a.id, "LOCK_HELD", nil)
	select {
	case err := <-a.done:
		if !errors.Is(err, client.ErrLockHeld) {
			s.t.Fatalf("the marker: %v", err)
		}
	case <-time.After(patience):
		s.t.Fatal("the client has not read in time")
	}
}

// lostOf tells the loss of a hold that the client does not know.
func (s *script) lostOf(id, resource string) {
	s.tell(&pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{LockId: id, Resource: resource, Reason: pb.LostReason_FORCED, CountedAt: durationpb.New(lock.BootTime())}}})
}
