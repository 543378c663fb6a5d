// Package jsonlines reads and writes the messages of the API as lines of JSON, in the
// proto3 JSON mapping, without reflection: those of a Session, and what HTTP has of them.
//
// Hand-written code here reads and writes the common messages, and protojson all others.
// Both give a line the same meaning: FuzzRequest and FuzzResponse compare them.
package jsonlines

import (
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// usualLength is that of a line with all that an acquire may have. What is read of a
// longer one shares no memory with it: a session keeps the names of its locks, and must
// not keep what a client writes around them.
const usualLength = 1 << 10

// Parse reads what one message is asked with. A nil error promises that it is what
// protojson reads; the error is protojson's.
func Parse(text []byte, m proto.Message) error {
	if q, ok := m.(*pb.AcquireRequest); ok && usualAcquire(text, q) {
		return nil
	}
	return protojson.Unmarshal(text, m)
}

// usualAcquire reports false, and may have filled some of q, where the text is not of the
// usual form.
func usualAcquire(text []byte, q *pb.AcquireRequest) bool {
	s, ok := scan(text)
	if ok {
		q.Reset()
		s.acquire(q, new(times))
	}
	return ok && s.over()
}

// ParseRequest reads a line. A nil error promises that it is what protojson reads; the
// error is protojson's.
func ParseRequest(line []byte) (*pb.SessionRequest, error) {
	if q := usualRequest(line); q != nil {
		return q, nil
	}
	q := new(pb.SessionRequest)
	return q, protojson.Unmarshal(line, q)
}

// usualRequest gives nil where the line is not of the usual form.
func usualRequest(line []byte) *pb.SessionRequest {
	s, ok := scan(line)
	if !ok {
		return nil
	}
	var had, hadRequest seen
	q := new(pb.SessionRequest)
	s.object(func(name string) {
		switch name {
		case "requestId":
			had.field(0, &s)
			q.RequestId = s.str()
			return
		case "traceparent":
			had.field(1, &s)
			q.Traceparent = s.str()
			return
		}
		hadRequest.field(0, &s) // one of these
		switch name {
		case "open":
			q.Request = s.open()
		case "acquire":
			m := new(struct { // one piece of memory for all
				r pb.SessionRequest_Acquire
				q pb.AcquireRequest
				t times
			})
			m.r.Acquire = &m.q
			s.acquire(&m.q, &m.t)
			q.Request = &m.r
		case "cancel":
			q.Request = s.cancel()
		case "release":
			q.Request = s.release()
		case "downgrade":
			q.Request = s.downgrade()
		case "keepAlive":
			q.Request = &pb.SessionRequest_KeepAlive{KeepAlive: &pb.KeepAliveRequest{SessionId: s.sessionOnly()}}
		default:
			s.stop()
		}
	})
	if !s.over() {
		return nil
	}
	return q
}

// scan begins to read a text of the usual length.
func scan(text []byte) (s scanner, ok bool) {
	if len(text) > usualLength || !utf8.Valid(text) {
		return s, false
	}
	return scanner{s: string(text)}, true
}

func (s *scanner) open() *pb.SessionRequest_Open {
	var had seen
	q := new(pb.OpenSessionRequest)
	s.object(func(name string) {
		switch name {
		case "liveness":
			had.field(0, s)
			q.Liveness = pb.Liveness(s.enum(pb.Liveness_value))
		case "ttl":
			had.field(1, s)
			q.Ttl = s.duration(new(durationpb.Duration))
		case "name":
			had.field(2, s)
			q.Name = s.str()
		case "metadata":
			had.field(3, s)
			q.Metadata = s.labels()
		default:
			s.stop()
		}
	})
	return &pb.SessionRequest_Open{Open: q}
}

// times are those of an acquire.
type times struct{ wait, maxHold, minHold durationpb.Duration }

func (s *scanner) acquire(q *pb.AcquireRequest, t *times) {
	var had seen
	s.object(func(name string) {
		switch name {
		case "sessionId":
			had.field(0, s)
			q.SessionId = s.str()
		case "requestId":
			had.field(1, s)
			q.RequestId = s.str()
		case "resource":
			had.field(2, s)
			q.Resource = s.str()
		case "mode":
			had.field(3, s)
			q.Mode = s.mode()
		case "wait":
			had.field(4, s)
			q.Wait = s.duration(&t.wait)
		case "maxHold":
			had.field(5, s)
			q.MaxHold = s.duration(&t.maxHold)
		case "owner":
			had.field(6, s)
			q.Owner = s.str()
		case "name":
			had.field(7, s)
			q.Name = s.str()
		case "metadata":
			had.field(8, s)
			q.Metadata = s.labels()
		case "reentrant":
			had.field(9, s)
			q.Reentrant = s.boolean()
		case "direct":
			had.field(10, s)
			q.Direct = s.boolean()
		case "guard":
			had.field(11, s)
			guard := s.boolean()
			q.Guard = &guard
		case "resources":
			had.field(12, s)
			s.list(func() { q.Resources = append(q.Resources, s.str()) })
		case "limit":
			had.field(13, s)
			limit := s.int32()
			q.Limit = &limit
		case "minHold":
			had.field(14, s)
			q.MinHold = s.duration(&t.minHold)
		default:
			s.stop()
		}
	})
}

func (s *scanner) cancel() *pb.SessionRequest_Cancel {
	var had seen
	q := new(pb.CancelRequest)
	s.object(func(name string) {
		switch name {
		case "requestId":
			had.field(0, s)
			q.RequestId = s.str()
		case "sessionId":
			had.field(1, s)
			q.SessionId = s.str()
		default:
			s.stop()
		}
	})
	return &pb.SessionRequest_Cancel{Cancel: q}
}

func (s *scanner) release() *pb.SessionRequest_Release {
	var had seen
	m := new(struct {
		r pb.SessionRequest_Release
		q pb.ReleaseRequest
	})
	q := &m.q
	s.object(func(name string) {
		switch name {
		case "sessionId":
			had.field(0, s)
			q.SessionId = s.str()
		case "lockId":
			had.field(1, s)
			q.LockId = s.str()
		case "requestId":
			had.field(2, s)
			q.RequestId = s.str()
		default:
			s.stop()
		}
	})
	m.r.Release = q
	return &m.r
}

func (s *scanner) downgrade() *pb.SessionRequest_Downgrade {
	var had seen
	q := new(pb.DowngradeRequest)
	s.object(func(name string) {
		switch name {
		case "sessionId":
			had.field(0, s)
			q.SessionId = s.str()
		case "lockId":
			had.field(1, s)
			q.LockId = s.str()
		default:
			s.stop()
		}
	})
	return &pb.SessionRequest_Downgrade{Downgrade: q}
}

func (s *scanner) sessionOnly() (id string) {
	var had seen
	s.object(func(name string) {
		if name != "sessionId" {
			s.stop()
			return
		}
		had.field(0, s)
		id = s.str()
	})
	return id
}

// AppendRequest appends q and the end of the line. Fields that are empty or 0 are left
// out. Its error is that a string is not UTF-8.
func AppendRequest(b []byte, q *pb.SessionRequest) ([]byte, error) {
	w := writer{b: b}
	w.begin()
	w.optional("requestId", q.GetRequestId())
	switch r := q.GetRequest().(type) {
	case *pb.SessionRequest_Open:
		w.name("open")
		w.begin()
		if l := r.Open.GetLiveness(); l != 0 {
			w.name("liveness")
			w.enum(int32(l), pb.Liveness_name)
		}
		w.optionalDuration("ttl", r.Open.GetTtl())
		w.optional("name", r.Open.GetName())
		w.optionalLabels("metadata", r.Open.GetMetadata())
		w.end()
	case *pb.SessionRequest_Acquire:
		if r.Acquire.Once != nil || r.Acquire.GetDetachable() || r.Acquire.GetHandle() != "" {
			return Append(b, q)
		}
		w.name("acquire")
		w.acquire(r.Acquire)
	case *pb.SessionRequest_Cancel:
		w.name("cancel")
		w.begin()
		w.optional("requestId", r.Cancel.GetRequestId())
		w.optional("sessionId", r.Cancel.GetSessionId())
		w.end()
	case *pb.SessionRequest_Release:
		if r.Release.GetOutcome() != 0 || r.Release.GetNote() != "" {
			return Append(b, q)
		}
		w.name("release")
		w.begin()
		w.optional("sessionId", r.Release.GetSessionId())
		w.optional("lockId", r.Release.GetLockId())
		w.optional("requestId", r.Release.GetRequestId())
		w.end()
	case *pb.SessionRequest_Downgrade:
		w.name("downgrade")
		w.begin()
		w.optional("sessionId", r.Downgrade.GetSessionId())
		w.optional("lockId", r.Downgrade.GetLockId())
		w.end()
	case *pb.SessionRequest_KeepAlive:
		w.name("keepAlive")
		w.begin()
		w.optional("sessionId", r.KeepAlive.GetSessionId())
		w.end()
	case nil:
	default:
		return Append(b, q)
	}
	w.optional("traceparent", q.GetTraceparent())
	w.end()
	return w.line()
}

func (w *writer) acquire(q *pb.AcquireRequest) {
	w.begin()
	w.optional("sessionId", q.GetSessionId())
	w.optional("requestId", q.GetRequestId())
	w.optional("resource", q.GetResource())
	if m := q.GetMode(); m != 0 {
		w.name("mode")
		w.enum(int32(m), pb.Mode_name)
	}
	w.optionalDuration("wait", q.GetWait())
	w.optionalDuration("maxHold", q.GetMaxHold())
	w.optionalDuration("minHold", q.GetMinHold())
	w.optional("owner", q.GetOwner())
	w.optional("name", q.GetName())
	w.optionalLabels("metadata", q.GetMetadata())
	if q.GetReentrant() {
		w.name("reentrant")
		w.b = append(w.b, "true"...)
	}
	if q.GetDirect() {
		w.name("direct")
		w.b = append(w.b, "true"...)
	}
	if q.Guard != nil {
		w.name("guard")
		w.b = strconv.AppendBool(w.b, q.GetGuard())
	}
	if q.Limit != nil {
		w.name("limit")
		w.number(q.GetLimit())
	}
	if len(q.GetResources()) > 0 {
		w.name("resources")
		w.list(q.GetResources())
	}
	w.end()
}
