package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unicode/utf8"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
	"github.com/locksidecar/locksidecar/internal/promptio"
	"github.com/locksidecar/locksidecar/localapi/peercred"
)

const (
	// lineBatch is how many lines are written together.
	lineBatch = 64
	// lineBuffer is what a connection keeps for reading, and for writing, while nothing
	// comes or goes.
	lineBuffer = 1 << 10
	// fewReads is after how many that need no larger buffer it is given back.
	fewReads = 64
	// maxGarbage is how many lines in a row may be JSON and no request.
	maxGarbage = 100
)

// serveLines serves a connection with lines of JSON: an app session, or, where the first
// line asks for that, looks at the locks.
func (s *Server) serveLines(c *conn, w *peercred.Watcher) {
	defer func() { _ = c.Close() }()
	ctx := c.calls(context.WithoutCancel(s.stopping))
	l, err := newLineConn(c, s.o.Limits.MessageBytes)
	if err != nil {
		return
	}
	api := &service{Server: s}
	if _, err = permit(ctx); err != nil {
		api.farewell(ctx, l, "", err)
		return
	}
	first, err := l.first(s.stopping, s.o.Limits.Handshake)
	switch {
	case errors.Is(err, io.EOF): // it has asked for nothing
	case err != nil:
		no := &refused{err: err}
		errors.As(err, &no)
		api.farewell(ctx, l, no.id, no.err)
	case asksToLook(first):
		if err = api.look(ctx, l, w, first); err != nil && !errors.Is(err, errGone) {
			api.farewell(ctx, l, "", err)
		}
	default:
		api.lineSession(ctx, l, first)
	}
}

// first reads the first request.
func (l *lineConn) first(stopping context.Context, patience time.Duration) (*pb.SessionRequest, error) {
	_ = l.SetDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(stopping, func() { _ = l.SetReadDeadline(time.Unix(1, 0)) })
	q, err := l.recv()
	switch {
	case !stop():
		return nil, context.Cause(stopping)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, invalid("open", "must come within %s", patience)
	}
	_ = l.SetDeadline(time.Time{})
	return q, err
}

// lineSession serves an app session whose stream is the connection.
func (s *service) lineSession(ctx context.Context, l *lineConn, first *pb.SessionRequest) {
	s.places.enter(l.conn)
	defer s.places.leave(l.conn)
	recv := func() (*pb.SessionRequest, error) {
		if q := first; q != nil {
			first = nil
			return q, nil
		}
		return l.recv()
	}
	t := s.newStream(ctx, wire{
		recv: recv, send: l.send, most: lineBatch, inline: true,
		waited: func() bool { return l.waited }, more: func() bool { return l.ahead >= 0 },
	})
	l.flush, l.progress = t.rest, t.out.progress
	err := t.serve()                      //nolint:contextcheck,nolintlint // the stream has its own
	if err == nil || t.out.unsent() > 0 { // who reads nothing reads no farewell
		return
	}
	no := &refused{err: err}
	errors.As(err, &no)
	t.out.leave(t.refusal(no.id, no.err))
	_ = l.SetDeadline(time.Now().Add(refusalTime))
	<-t.out.settle()
	if s.stopping.Err() == nil && !errors.Is(err, errGone) {
		drain(l.UnixConn)
	}
}

// farewell writes the last line to a connection without a session.
func (s *service) farewell(ctx context.Context, l *lineConn, id string, err error) {
	_ = l.SetDeadline(time.Now().Add(refusalTime))
	if l.send([]*pb.SessionResponse{s.refusal(ctx, id, err)}, true) == nil && s.stopping.Err() == nil {
		drain(l.UnixConn)
	}
}

// lastLine is an error that ends a connection.
func lastLine(st *statuspb.Status) []byte {
	return appendLine(nil, &pb.SessionResponse{Response: &pb.SessionResponse_Error{Error: st}})
}

// appendLine appends a message, or why it cannot be told.
func appendLine(b []byte, a *pb.SessionResponse) []byte {
	line, err := jsonlines.Append(b, a)
	if err != nil {
		line, _ = jsonlines.Append(b, &pb.SessionResponse{
			RequestId: a.GetRequestId(),
			Response:  &pb.SessionResponse_Error{Error: toStatus(err)},
		})
	}
	return line
}

// lineConn reads requests from a connection and writes answers to it. One goroutine at
// a time reads, and one writes.
type lineConn struct {
	*conn
	raw      syscall.RawConn
	most     int    // bytes of a line
	flush    func() // sends what is due; called before it waits for the client
	progress func() // called when the client has read something, and not all

	in      []byte // what was read and not yet given
	ahead   int    // the end of the first line in in; negative: it is not there yet, or was not looked for
	scanned int    // in has no end of a line before this
	buf     []byte // where in lies
	full    bool   // the last read has filled it: there is more
	few     int    // reads since one that needed more than lineBuffer
	garbage int    // lines in a row that were no requests
	waited  bool   // the last line was not there yet when it was asked for
	got     int    // bytes of the last read
	ended   error  // of the last read

	out     []byte // what is to be written
	written int
	failed  error // of the last write

	write, waitAndWrite, readOrWait func(fd uintptr) bool // made once
}

func newLineConn(c *conn, most int) (*lineConn, error) {
	raw, err := c.SyscallConn()
	l := &lineConn{conn: c, raw: raw, most: most, ahead: -1, flush: func() {}, progress: func() {}}
	l.waitAndWrite, l.readOrWait = l.writeSome, l.tryRead
	l.write = func(fd uintptr) bool {
		l.writeSome(fd)
		return true
	}
	return l, err
}

// recv gives the next request. io.EOF: the client has ended the connection or its half
// of it. *refused: the line is JSON with an id, and no request.
func (l *lineConn) recv() (*pb.SessionRequest, error) {
	l.waited = false
	for {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		q, err := jsonlines.ParseRequest(line)
		if err != nil {
			return nil, l.explain(line)
		}
		if q.GetOpen() == nil && !matches(q.GetRequestId()) {
			return nil, errNoID
		}
		l.garbage = 0
		return q, nil
	}
}

// explain says why a line is no request.
func (l *lineConn) explain(line []byte) error {
	err := whyNot("line", line, new(pb.SessionRequest))
	l.garbage++
	switch {
	case !utf8.Valid(line) || !json.Valid(line) || line[0] != '{':
		return err
	case l.garbage > maxGarbage:
		return refuse(reasonLimit, "more than %d lines in a row were no requests; the last one: %s", maxGarbage, err)
	}
	var with struct {
		RequestID any `json:"requestId"`
	}
	_ = json.Unmarshal(line, &with) // it is an object
	id, _ := with.RequestID.(string)
	if !matches(id) {
		return err
	}
	return &refused{id: id, err: err}
}

// errNoID ends the connection: the client could not tell what the answer belongs to, and
// an error without an id is the last line.
var errNoID = invalid("request_id", "must be 1 to %d bytes long", maxRequestID)

// matches tells whether an answer with that id finds its request.
func matches(id string) bool { return id != "" && len(id) <= maxRequestID }

// line gives the next line, until the next call.
func (l *lineConn) line() ([]byte, error) {
	for {
		if l.ahead < 0 {
			l.look()
		}
		if l.ahead >= 0 {
			line := l.in[:l.ahead]
			l.in, l.scanned = l.in[l.ahead+1:], 0
			l.look()
			if len(line) > l.most {
				return nil, l.tooLong()
			}
			return line, nil
		}
		if l.scanned > l.most {
			return nil, l.tooLong()
		}
		if err := l.read(); err != nil {
			return nil, err
		}
	}
}

// look finds the end of the first line in in.
func (l *lineConn) look() {
	if l.ahead = bytes.IndexByte(l.in[l.scanned:], '\n'); l.ahead >= 0 {
		l.ahead += l.scanned
	} else {
		l.scanned = len(l.in)
	}
}

func (l *lineConn) tooLong() error {
	return refuse(reasonLimit, "a line is longer than %d bytes", l.most)
}

// read reads what there is, or waits for more.
func (l *lineConn) read() error {
	switch {
	case len(l.in) == len(l.buf): // there is no room for the rest of a line
		l.move(min(8*max(len(l.buf), lineBuffer/8), l.most+lineBuffer))
	case l.full && len(l.buf) < lineBatch*lineBuffer/4:
		l.move(lineBatch * lineBuffer / 4)
	case len(l.in) == 0 && len(l.buf) > lineBuffer && l.few > fewReads:
		l.move(lineBuffer)
	default:
		copy(l.buf, l.in)
	}
	l.flush()
	n, err := l.readSome()
	l.in = l.buf[:len(l.in)+n]
	l.full = len(l.in) == len(l.buf)
	if l.few++; len(l.in) > lineBuffer {
		l.few = 0
	}
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.EOF
	default:
		return fmt.Errorf("%w: read line: %w", errGone, err)
	}
}

// readSome reads what there is, or waits for more, and notes that it does.
func (l *lineConn) readSome() (n int, err error) {
	if len(l.sniffed) > 0 {
		return l.Read(l.buf[len(l.in):])
	}
	if err := l.raw.Read(l.readOrWait); err != nil { // the connection is closed, or the time is over
		return 0, err
	}
	return l.got, l.ended
}

// tryRead reports false when there is nothing to read.
func (l *lineConn) tryRead(fd uintptr) bool {
	l.got, l.ended = promptio.Read(fd, l.buf[len(l.in):])
	none := errors.Is(l.ended, syscall.EAGAIN)
	l.waited = l.waited || none
	return !none
}

// move takes a buffer of another size, with in at its begin.
func (l *lineConn) move(size int) {
	l.buf = append(make([]byte, 0, size), l.in...)[:size]
}

// send writes messages as lines, all at once. errBlocked: the client has to read first;
// without a batch it goes on with what is left.
func (l *lineConn) send(batch []*pb.SessionResponse, wait bool) error {
	for _, a := range batch {
		l.out = appendLine(l.out, a)
	}
	write := l.write
	if wait {
		write = l.waitAndWrite
	}
	for {
		if err := l.raw.Write(write); err != nil { // the connection is closed
			l.failed = err
		}
		if errors.Is(l.failed, syscall.EAGAIN) {
			return errBlocked
		}
		if l.failed != nil || l.written == len(l.out) {
			break
		}
		l.progress()
	}
	err := l.failed
	l.out, l.written = l.out[:0], 0
	if cap(l.out) > lineBuffer {
		l.out = nil
	}
	if err != nil {
		_ = l.Close() // a client that reads no more may still write, and would get locks without news of them
		return fmt.Errorf("%w: write line: %w", errGone, err)
	}
	return nil
}

// writeSome writes what the client's end of the socket takes. It reports false when that
// is nothing.
func (l *lineConn) writeSome(fd uintptr) bool {
	n, err := promptio.Write(fd, l.out[l.written:])
	l.written += n
	l.failed = err
	return !errors.Is(err, syscall.EAGAIN)
}
