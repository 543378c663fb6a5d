// Package jsonlines reads and writes the messages of a Session as lines of JSON, in
// the proto3 JSON mapping, without reflection.
//
// Hand-written code here reads and writes the common messages, and protojson all others.
// Both give a line the same meaning: FuzzRequest and FuzzResponse compare them.
package jsonlines

import (
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// usualLength is that of a line with all that an acquire may have. What is read of a
// longer one shares no memory with it: a session keeps the names of its locks, and must
// not keep what a client writes around them.
const usualLength = 1 << 10

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
	if len(line) > usualLength || !utf8.Valid(line) {
		return nil
	}
	s := scanner{s: string(line)}
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
			q.Request = s.acquire()
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
	if s.unusual || !s.over() {
		return nil
	}
	return q
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

func (s *scanner) acquire() *pb.SessionRequest_Acquire {
	var had seen
	m := new(struct { // one piece of memory for all
		r       pb.SessionRequest_Acquire
		q       pb.AcquireRequest
		wait    durationpb.Duration
		maxHold durationpb.Duration
	})
	q := &m.q
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
			q.Wait = s.duration(&m.wait)
		case "maxHold":
			had.field(5, s)
			q.MaxHold = s.duration(&m.maxHold)
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
		default:
			s.stop()
		}
	})
	m.r.Acquire = q
	return &m.r
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
		if r.Acquire.Once != nil {
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
	if len(q.GetResources()) > 0 {
		w.name("resources")
		w.list(q.GetResources())
	}
	w.end()
}
