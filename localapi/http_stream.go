package localapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
)

const contentNDJSON = "application/x-ndjson"

// lineWriter writes messages as lines of JSON, and each at once. The header goes
// out with the first, so a call that fails before that has a proper HTTP status.
type lineWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	started bool
	stall   time.Duration // how long a line may take to be written; 0: as long as the call lasts
}

// head sends the header, if that was not done before.
func (l *lineWriter) head() error {
	if l.started {
		return nil
	}
	l.begin()
	return l.flush()
}

func (l *lineWriter) begin() {
	if !l.started {
		l.started = true
		l.w.Header().Set("Content-Type", contentNDJSON)
		l.w.Header().Set("Cache-Control", "no-store")
		l.w.WriteHeader(http.StatusOK)
	}
}

func (l *lineWriter) send(m proto.Message) error {
	line, err := marshalJSON(m)
	if err != nil {
		return err
	}
	l.begin()
	if l.stall > 0 {
		late := newCountdown(l.stall, func() { _ = l.control.SetWriteDeadline(time.Unix(1, 0)) }) // all of our connections have deadlines
		defer late.stop()
	}
	if _, err := l.w.Write(line); err != nil {
		return fmt.Errorf("%w: write line: %w", errGone, err)
	}
	return l.flush()
}

func (l *lineWriter) flush() error {
	if err := l.control.Flush(); err != nil {
		return fmt.Errorf("%w: write line: %w", errGone, err)
	}
	return nil
}

// streamed serves a call that answers with many messages.
func streamed[Q any, A proto.Message, PQ interface {
	*Q
	proto.Message
}](s *Server, stall time.Duration, call func(context.Context, PQ, func(A) error) error) handler {
	return func(w http.ResponseWriter, r *http.Request, vars []pathVar) {
		q := PQ(new(Q))
		if err := s.read(w, r, q, vars); err != nil {
			s.fail(w, r, err)
			return
		}
		s.serveStream(w, r, func(ctx context.Context, lines *lineWriter) error {
			lines.stall = stall
			return call(ctx, q, func(a A) error { return lines.send(a) })
		})
	}
}

// serveStream runs a call that writes lines. It ends when the client is gone. A
// client that does not read makes a write block; when the server stops, that
// write is ended too.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, call func(context.Context, *lineWriter) error) {
	lines := &lineWriter{w: w, control: http.NewResponseController(w)}
	_ = lines.control.SetWriteDeadline(time.Time{})
	stop := context.AfterFunc(r.Context(), func() { _ = lines.control.SetWriteDeadline(time.Now().Add(stopLimit / 2)) })
	defer stop()
	err := call(r.Context(), lines)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && s.stopping.Err() == nil: // net/http has ended r.Context() at the failed write
		s.stalled(r.Context())
	case err == nil:
		lines.begin() // a session that ended at once
	case !lines.started:
		s.fail(w, r, err)
	default:
		// The HTTP status has gone out, so the error is the last line. Like every
		// line it is an object whose one field says what it is.
		_, line := marshalStatus(s.explain(r.Context(), r.Method+" "+r.URL.Path, err))
		_, _ = w.Write(slices.Concat([]byte(`{"error":`), bytes.TrimSpace(line), []byte("}\n")))
	}
}
