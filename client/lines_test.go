package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
)

// shortDir is short enough for a socket's path.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// linesPair is a stream of lines and the sidecar's end of its connection.
func linesPair(t *testing.T) (*stream, *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(shortDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c := &Client{path: l.Addr().String(), closing: ctx}
	s, err := c.openStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	return s, peer
}

// TestLinesOfAnyLength are read whole, one after another.
func TestLinesOfAnyLength(t *testing.T) {
	s, peer := linesPair(t)
	lengths := []int{10, readBuffer - 1, readBuffer, readBuffer + 1, 3*readBuffer + 7, 5, 2 * readBuffer, 1}
	go func() {
		for i, n := range lengths {
			_, _ = io.WriteString(peer, strings.Repeat(string(rune('a'+i)), n-1)+"\n")
		}
		_, _ = io.WriteString(peer, strings.Repeat("half", readBuffer))
		_ = peer.Close()
	}()
	next := func() (line []byte, err error) {
		for err == nil && line == nil {
			if line, err = s.line(); err == nil && line == nil {
				err = s.more()
			}
		}
		return line, err
	}
	for i, n := range lengths {
		line, err := next()
		if want := strings.Repeat(string(rune('a'+i)), n-1) + "\n"; err != nil || string(line) != want {
			t.Errorf("line %d: %d bytes, %v, want %d", i, len(line), err, n)
		}
	}
	if _, err := next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// TestWhatTheSidecarSaysOfTheConnection ends it; what it says of a request does not.
func TestWhatTheSidecarSaysOfTheConnection(t *testing.T) {
	s, peer := linesPair(t)
	st := statusOf(t, "too many", &errdetails.ErrorInfo{Reason: "LIMIT_EXCEEDED", Domain: "locksidecar"})
	for _, id := range []string{"1", ""} {
		line, err := jsonlines.Append(nil, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Error{Error: st}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := peer.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := s.recv(); err != nil || a.GetRequestId() != "1" || a.GetError().GetMessage() != "too many" {
		t.Errorf("of a request: %v, %v", a, err)
	}
	if a, err := s.recv(); !errors.Is(err, ErrLimitExceeded) || a != nil {
		t.Errorf("of the connection: %v, %v", a, err)
	}
	if _, err := io.WriteString(peer, "no json\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.recv(); err == nil || !strings.HasPrefix(err.Error(), "read answer: ") {
		t.Errorf("of what is no answer: %v", err)
	}
}

// TestSendToOneWhoDoesNotRead: it does not block unless it is told to, and then all goes
// out, once and in order.
func TestSendToOneWhoDoesNotRead(t *testing.T) {
	s, peer := linesPair(t)
	q := func(i int) *pb.SessionRequest {
		return &pb.SessionRequest{RequestId: string(rune('a'+i%26)) + strings.Repeat("x", 1000), Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "r"}}}
	}
	sent := 0
	for {
		var batch []*pb.SessionRequest
		for range lineBatch {
			batch = append(batch, q(sent))
			sent++
		}
		err := s.send(batch, false)
		if errors.Is(err, errBlocked) {
			break
		}
		if err != nil || sent > 100_000 {
			t.Fatalf("after %d requests: %v", sent, err)
		}
	}
	rest := make(chan error, 1)
	go func() {
		err := s.send(nil, true)
		if err == nil {
			err = s.send([]*pb.SessionRequest{q(sent)}, true)
		}
		rest <- err
	}()
	in := bufio.NewReader(peer)
	for i := range sent + 1 {
		line, err := in.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if got, err := jsonlines.ParseRequest(line); err != nil || got.GetRequestId() != q(i).GetRequestId() {
			t.Fatalf("request %d: %v, %v", i, got, err)
		}
	}
	if err := <-rest; err != nil {
		t.Error(err)
	}
	_ = peer.Close()
	for _, wait := range []bool{false, true} {
		if err := s.send([]*pb.SessionRequest{q(0)}, wait); err == nil || errors.Is(err, errBlocked) || !strings.HasPrefix(err.Error(), "send request: ") {
			t.Errorf("to one who is gone: %v", err)
		}
	}
	_ = s.conn.Close()
	if err := s.send([]*pb.SessionRequest{q(0)}, true); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
}

// TestBufferOfLargeRequests is not kept, and that of others is.
func TestBufferOfLargeRequests(t *testing.T) {
	s, peer := linesPair(t)
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	q := &pb.SessionRequest{RequestId: strings.Repeat("x", 1000), Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "r"}}}
	for _, c := range []struct {
		requests int
		kept     bool
	}{{10, true}, {lineBatch, false}, {1, true}} {
		if err := s.send(slices.Repeat([]*pb.SessionRequest{q}, c.requests), true); err != nil {
			t.Fatal(err)
		}
		if kept := cap(s.out) > 0; kept != c.kept {
			t.Errorf("after %d requests of 1 KB: kept %v", c.requests, kept)
		}
	}
}

// TestManyQueued: who sends for others, too, leaves the rest to a goroutine.
func TestManyQueued(t *testing.T) {
	st, peer := linesPair(t)
	s := alone(t, func() time.Duration { return time.Hour })
	s.stream = st
	const queued = (helped + 1) * lineBatch
	s.outbox.busy = true
	for range queued {
		s.post(newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "r"}}})
	}
	s.send(helped)
	in := bufio.NewReader(peer)
	_ = peer.SetReadDeadline(time.Now().Add(20 * time.Second))
	for i := range queued {
		if line, err := in.ReadString('\n'); err != nil {
			t.Fatalf("request %d: %q, %v", i, line, err)
		}
	}
	s.running.Wait()
	if s.outbox.busy {
		t.Error("all is sent, and somebody is sending")
	}
}

// counted does not end, and counts those who wait for that.
type counted struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int32
}

func (c *counted) Done() <-chan struct{} { return c.done }

// AfterFunc is what context.AfterFunc calls.
func (c *counted) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	return func() bool {
		c.waiting.Add(-1)
		return true
	}
}

// TestWhatIsOverIsForgotten: a client that lives long keeps nothing of its connections.
func TestWhatIsOverIsForgotten(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(shortDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	closing := &counted{Context: context.Background(), done: make(chan struct{})}
	c := &Client{path: l.Addr().String(), closing: closing}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.openStream(ctx); err != nil {
		t.Fatal(err)
	}
	if closing.waiting.Load() != 1 {
		t.Error("the connection does not end with the client")
	}
	cancel()
	for end := time.Now().Add(20 * time.Second); closing.waiting.Load() != 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if closing.waiting.Load() != 0 {
		t.Error("the client keeps a connection that is over")
	}
}
