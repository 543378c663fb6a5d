package jsonlines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // so that protojson knows ErrorInfo

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Append appends a message and the end of the line. Fields that are empty or 0 are
// there too: scripts should not have to guess. Its error is that a string is not UTF-8,
// such as one that somebody else has written into the store; b is then as it was.
func Append(b []byte, m proto.Message) ([]byte, error) {
	w := writer{b: b}
	if !w.usual(m) {
		return byProtojson(b, m)
	}
	line, err := w.line()
	if err != nil {
		return b, fmt.Errorf("marshal answer: %w", err)
	}
	return line, nil
}

func byProtojson(b []byte, m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return b, fmt.Errorf("marshal answer: %w", err)
	}
	line := bytes.NewBuffer(b)
	_ = json.Compact(line, text) // protojson puts in blanks at random, so that nobody relies on them
	line.WriteByte('\n')
	return line.Bytes(), nil
}

// usual writes a common message. It reports false, and may have written some of it, where
// protojson has to.
func (w *writer) usual(m proto.Message) bool {
	switch m := m.(type) {
	case *pb.SessionResponse:
		return w.response(m)
	case *pb.Grant:
		return w.grant(m)
	case *pb.ReleaseResponse:
		return w.released(m)
	case *pb.Event:
		return w.event(m)
	default:
		return false
	}
}

func (w *writer) response(a *pb.SessionResponse) (ok bool) {
	w.begin()
	w.text("requestId", a.GetRequestId())
	switch r := a.GetResponse().(type) {
	case *pb.SessionResponse_Granted:
		w.name("granted")
		ok = w.grant(r.Granted)
	case *pb.SessionResponse_Downgraded:
		w.name("downgraded")
		ok = w.grant(r.Downgraded)
	case *pb.SessionResponse_Released:
		w.name("released")
		ok = w.released(r.Released)
	case *pb.SessionResponse_Event:
		w.name("event")
		ok = w.event(r.Event)
	}
	w.end()
	return ok
}

func (w *writer) released(a *pb.ReleaseResponse) bool {
	w.begin()
	w.name("count")
	w.number(a.GetCount())
	w.optionalDuration("keptFor", a.GetKeptFor())
	w.end()
	return true
}

// event writes news of the lease; of others there are few.
func (w *writer) event(e *pb.Event) bool {
	l, ok := e.GetEvent().(*pb.Event_Lease)
	if !ok {
		return false
	}
	w.begin()
	w.name("lease")
	w.begin()
	w.optionalDuration("validFor", l.Lease.GetValidFor())
	w.boolean("jeopardy", l.Lease.GetJeopardy())
	w.optionalDuration("countedAt", l.Lease.GetCountedAt())
	w.end()
	w.end()
	return true
}

// grant leaves what is done once to protojson.
func (w *writer) grant(g *pb.Grant) bool {
	if g != nil && (g.Attempt != nil || g.Previous != nil || g.OutcomeGuard != nil) {
		return false
	}
	w.begin()
	w.text("lockId", g.GetLockId())
	w.text("resource", g.GetResource())
	w.name("mode")
	w.enum(int32(g.GetMode()), pb.Mode_name)
	w.int64("fence", g.GetFence())
	w.optionalDuration("validFor", g.GetValidFor())
	w.name("count")
	w.number(g.GetCount())
	w.optionalDuration("countedAt", g.GetCountedAt())
	w.optionalGuard(g.GetGuard())
	if g.Slot != nil {
		w.name("slot")
		w.number(g.GetSlot())
	}
	w.optionalDuration("endsIn", g.GetEndsIn())
	w.name("parts")
	w.b = append(w.b, '[')
	for _, p := range g.GetParts() {
		w.comma()
		w.begin()
		w.text("resource", p.GetResource())
		w.int64("fence", p.GetFence())
		w.optionalGuard(p.GetGuard())
		w.text("lockId", p.GetLockId())
		w.end()
	}
	w.b = append(w.b, ']')
	w.end()
	return true
}

func (w *writer) optionalGuard(guard *pb.Guard) {
	if guard == nil {
		return
	}
	w.name("guard")
	w.begin()
	w.text("dialect", guard.GetDialect())
	w.text("sql", guard.GetSql())
	w.name("args")
	w.list(guard.GetArgs())
	w.end()
}

// ParseResponse reads a line. Fields that this program does not know are left out: the
// sidecar may be newer. Its error is protojson's.
func ParseResponse(line []byte) (*pb.SessionResponse, error) {
	if a := usualResponse(line); a != nil {
		return a, nil
	}
	a := new(pb.SessionResponse)
	return a, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(line, a)
}

// usualResponse gives nil where the line is not of the usual form.
func usualResponse(line []byte) *pb.SessionResponse {
	if !utf8.Valid(line) {
		return nil
	}
	s := scanner{s: string(line)}
	var had, hadResponse seen
	a := new(pb.SessionResponse)
	s.object(func(name string) {
		if name == "requestId" {
			had.field(0, &s)
			a.RequestId = s.str()
			return
		}
		hadResponse.field(0, &s) // one of these
		switch name {
		case "granted":
			a.Response = &pb.SessionResponse_Granted{Granted: s.grant()}
		case "downgraded":
			a.Response = &pb.SessionResponse_Downgraded{Downgraded: s.grant()}
		case "released":
			a.Response = &pb.SessionResponse_Released{Released: s.released()}
		case "event":
			a.Response = &pb.SessionResponse_Event{Event: s.event()}
		default:
			s.stop()
		}
	})
	if !s.over() {
		return nil
	}
	return a
}

func (s *scanner) released() *pb.ReleaseResponse {
	var had seen
	a := new(pb.ReleaseResponse)
	s.object(func(name string) {
		switch name {
		case "count":
			had.field(0, s)
			a.Count = s.int32()
		case "keptFor":
			had.field(1, s)
			a.KeptFor = s.duration(new(durationpb.Duration))
		default:
			s.stop()
		}
	})
	return a
}

func (s *scanner) grant() *pb.Grant {
	var had seen
	m := new(struct {
		g                   pb.Grant
		validFor, countedAt durationpb.Duration
	})
	g := &m.g
	s.object(func(name string) {
		switch name {
		case "lockId":
			had.field(0, s)
			g.LockId = s.str()
		case "resource":
			had.field(1, s)
			g.Resource = s.str()
		case "mode":
			had.field(2, s)
			g.Mode = s.mode()
		case "fence":
			had.field(3, s)
			g.Fence = s.int64()
		case "validFor":
			had.field(4, s)
			g.ValidFor = s.duration(&m.validFor)
		case "count":
			had.field(5, s)
			g.Count = s.int32()
		case "countedAt":
			had.field(6, s)
			g.CountedAt = s.duration(&m.countedAt)
		case "guard":
			had.field(7, s)
			g.Guard = s.guard()
		case "parts":
			had.field(8, s)
			s.list(func() { g.Parts = append(g.Parts, s.part()) })
		case "slot":
			had.field(9, s)
			slot := s.int32()
			g.Slot = &slot
		default:
			s.stop()
		}
	})
	return g
}

func (s *scanner) part() *pb.Part {
	var had seen
	p := new(pb.Part)
	s.object(func(name string) {
		switch name {
		case "resource":
			had.field(0, s)
			p.Resource = s.str()
		case "fence":
			had.field(1, s)
			p.Fence = s.int64()
		case "guard":
			had.field(2, s)
			p.Guard = s.guard()
		case "lockId":
			had.field(3, s)
			p.LockId = s.str()
		default:
			s.stop()
		}
	})
	return p
}

func (s *scanner) guard() *pb.Guard {
	var had seen
	g := new(pb.Guard)
	s.object(func(name string) {
		switch name {
		case "dialect":
			had.field(0, s)
			g.Dialect = s.str()
		case "sql":
			had.field(1, s)
			g.Sql = s.str()
		case "args":
			had.field(2, s)
			s.list(func() { g.Args = append(g.Args, s.str()) })
		default:
			s.stop()
		}
	})
	return g
}

// event reads news of the lease; of others there are few.
func (s *scanner) event() *pb.Event {
	var had, hadEvent seen
	n := new(pb.LeaseNews)
	s.object(func(name string) {
		if name != "lease" {
			s.stop()
			return
		}
		hadEvent.field(0, s)
		s.object(func(name string) {
			switch name {
			case "validFor":
				had.field(0, s)
				n.ValidFor = s.duration(new(durationpb.Duration))
			case "jeopardy":
				had.field(1, s)
				n.Jeopardy = s.boolean()
			case "countedAt":
				had.field(2, s)
				n.CountedAt = s.duration(new(durationpb.Duration))
			default:
				s.stop()
			}
		})
	})
	if hadEvent == 0 {
		s.stop()
	}
	return &pb.Event{Event: &pb.Event_Lease{Lease: n}}
}
