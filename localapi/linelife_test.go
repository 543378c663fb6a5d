package localapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// TestTheLongestLine is as long as a message may be, its end not counted; one more byte is
// too many, however the line comes.
func TestTheLongestLine(t *testing.T) {
	const most = 4 << 10
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.MessageBytes = most })
	line := func(n int) string {
		begin, end := `{"requestId":"1"`, `,"keepAlive":{}}`
		return begin + strings.Repeat(" ", n-len(begin)-len(end)) + end
	}
	for name, text := range map[string]string{"with its end": "\n", "with more": "\n\n\n", "before its end": ""} {
		t.Run(name, func(t *testing.T) {
			x := s.says(t, opening)
			x.answer()
			x.say(line(most) + text)
			if text == "" {
				x.say("\n")
			}
			if a := x.answer(); a.GetKeptAlive() == nil {
				t.Errorf("%v", a)
			}
			x.say(line(most+1) + text)
			x.refusedWith("", reasonLimit, "a line is longer than 4096 bytes")
			x.ends()
		})
	}
}

// TestHandshakeIsOverWithOpen: its limit is one for the first line, not for the session.
func TestHandshakeIsOverWithOpen(t *testing.T) {
	const handshake = 100 * time.Millisecond
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Handshake = handshake })
	for _, first := range []string{opening, `{"requestId":"o","getInfo":{}}` + "\n"} {
		var x *said
		eventually(t, "heard in time", func() bool {
			x = s.says(t, first)
			line, err := x.in.ReadString('\n')
			return err == nil && !strings.Contains(line, "error")
		})
		time.Sleep(2 * handshake)
		next := `{"requestId":"1","keepAlive":{}}` + "\n"
		if first != opening {
			next = first
		}
		x.say(next)
		if a := x.answer(); a.GetError() != nil {
			t.Errorf("after the time for the first line: %v", a)
		}
	}
}

// TestIdleLooksEndWithTheSidecar: they are told why.
func TestIdleLooksEndWithTheSidecar(t *testing.T) {
	s := start(t)
	x := s.says(t, `{"requestId":"1","getInfo":{}}`+"\n")
	x.answer()
	s.stop()
	x.refusedWith("", reasonDraining, "the sidecar is stopping and takes no new work")
	x.ends()
}

// TestLinesThatEndInTheMiddle: what was not said to the end is not done.
func TestLinesThatEndInTheMiddle(t *testing.T) {
	s := start(t)
	x := s.says(t, opening)
	x.answer()
	y := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"r"}}`)
	y.answer()
	if err := y.c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	y.ends()
	x.say(`{"requestId":"1","acquire":{"resource":"r","wait":"0s"}}` + "\n")
	if f := x.answer().GetGranted().GetFence(); f == 0 {
		t.Error("the lock of half a line is held")
	}
}

// lineEnd is our end of a connection with lines, and the client's.
func lineEnd(t *testing.T, most int) (*lineConn, *net.UnixConn) {
	t.Helper()
	uc, client := pair(t)
	l, err := newLineConn(&conn{UnixConn: uc}, most)
	if err != nil {
		t.Fatal(err)
	}
	return l, client
}

// TestBuffersOfLines: a connection reads much at once where much comes, keeps little when
// that is over, and never more than the longest line needs.
func TestBuffersOfLines(t *testing.T) {
	const most = 64 << 10
	l, client := lineEnd(t, most)
	largest := 0
	say := func(n, size int) {
		t.Helper()
		written := make(chan error, 1)
		go func() {
			for i := range n {
				line := fmt.Sprintf(`{"requestId":"%d","keepAlive":{}}`, i)
				line += strings.Repeat(" ", max(0, size-len(line)-1)) + "\n"
				if _, err := io.WriteString(client, line); err != nil {
					written <- err
					return
				}
			}
			written <- nil
		}()
		for i := range n {
			q, err := l.recv()
			if err != nil || q.GetRequestId() != fmt.Sprint(i) {
				t.Fatalf("request %d of %d bytes: %v %v", i, size, q, err)
			}
			largest = max(largest, len(l.buf))
		}
		if err := within(t, written); err != nil {
			t.Fatal(err)
		}
	}
	small := func(when string) {
		t.Helper()
		for range 2 * (fewReads + 2) {
			say(1, 40)
		}
		if len(l.buf) != lineBuffer || cap(l.in) > 2*lineBuffer {
			t.Errorf("%s it keeps %d bytes", when, len(l.buf))
		}
	}
	small("at first")
	if largest != lineBuffer {
		t.Errorf("for small lines it takes %d bytes", largest)
	}
	for _, size := range []int{lineBuffer - 1, lineBuffer, lineBuffer + 1, 8 * lineBuffer, most - 1, most + 1} {
		say(3, size)
		if len(l.buf) > most+lineBuffer {
			t.Errorf("for lines of %d bytes it takes %d", size, len(l.buf))
		}
	}
	small("after long lines")
	go func() { // in pieces
		for _, piece := range []string{`{"requestId":"0",` + strings.Repeat(" ", 3*lineBuffer), strings.Repeat(" ", 100), strings.Repeat(" ", lineBuffer), `"keepAlive":{}}` + "\n"} {
			_, _ = io.WriteString(client, piece)
			time.Sleep(time.Millisecond) // so that it is often read alone
		}
	}()
	if q, err := l.recv(); err != nil || q.GetRequestId() != "0" {
		t.Fatalf("a line in pieces: %v %v", q, err)
	}
	small("after a line in pieces")
	// All that is there already comes in few reads.
	reads := 0
	l.flush = func() { reads++ }
	const many = 1000
	var all strings.Builder
	for i := range many {
		fmt.Fprintf(&all, `{"requestId":"%d","keepAlive":{}}`+"\n", i)
	}
	if _, err := io.WriteString(client, all.String()); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		if q, err := l.recv(); err != nil || q.GetRequestId() != fmt.Sprint(i) {
			t.Fatalf("%v %v", q, err)
		}
	}
	if reads > all.Len()/(lineBuffer*lineBatch/4)+4 {
		t.Errorf("%d reads for %d bytes", reads, all.Len())
	}
	small("after many lines")
	_ = client.Close()
	if _, err := l.recv(); err == nil {
		t.Error("it goes on after the end")
	}
}

// TestAnswersInLines: they are written together, a client that does not read blocks who
// may wait and nobody else, and what was needed for it is not kept.
func TestAnswersInLines(t *testing.T) {
	l, client := lineEnd(t, 1<<20)
	progress := 0
	l.progress = func() { progress++ }
	long := &pb.SessionResponse{RequestId: strings.Repeat("x", 1000)}
	var batch []*pb.SessionResponse
	for range 2000 { // more than the socket takes
		batch = append(batch, long)
	}
	if err := l.send(batch, false); err != errBlocked { //nolint:errorlint // that and nothing else
		t.Fatalf("it does not block: %v", err)
	}
	read := make(chan int, 1)
	go func() {
		n, err := io.Copy(io.Discard, client)
		if err != nil {
			t.Error(err)
		}
		read <- int(n)
	}()
	if err := l.send(nil, true); err != nil {
		t.Fatal(err)
	}
	if progress == 0 {
		t.Error("it does not say that the client reads")
	}
	if cap(l.out) > lineBuffer || l.written != 0 {
		t.Errorf("%d bytes are kept, %d written", cap(l.out), l.written)
	}
	if err := l.send([]*pb.SessionResponse{{RequestId: "1"}}, false); err != nil || cap(l.out) == 0 {
		t.Errorf("%v, %d bytes are kept", err, cap(l.out))
	}
	_ = l.CloseWrite()
	want := 0
	for _, a := range append(batch, &pb.SessionResponse{RequestId: "1"}) {
		want += len(appendLine(nil, a))
	}
	if n := within(t, read); n != want {
		t.Errorf("%d bytes came, want %d", n, want)
	}
}

// TestFirstLine: who stops while it waits says so; who waits for too long, that.
func TestFirstLine(t *testing.T) {
	l, _ := lineEnd(t, 1<<10)
	if _, err := l.first(t.Context(), time.Millisecond); err == nil || err.Error() != "open must come within 1ms" {
		t.Errorf("too late: %v", err)
	}
	stopping, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(time.Millisecond, func() { stop(session.ErrDraining) })
	if _, err := l.first(stopping, time.Hour); err != session.ErrDraining { //nolint:errorlint // that and nothing else
		t.Errorf("stopping: %v", err)
	}
}

// TestAnswersThatCannotBeTold are told to be so, with their id.
func TestAnswersThatCannotBeTold(t *testing.T) {
	line := appendLine(nil, &pb.SessionResponse{RequestId: "1", Response: &pb.SessionResponse_Lock{Lock: &pb.Lock{Resource: "\xff"}}})
	if text := string(line); !strings.HasPrefix(text, `{"requestId":"1","error":{"code":13,`) || !strings.Contains(text, "INTERNAL") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", line)
	}
}
