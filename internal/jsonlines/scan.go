package jsonlines

import (
	"math"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// scanner reads the usual form of a line: names in lowerCamelCase, each at most once,
// strings without escapes, no null. What is not of that form makes it stop with
// unusual set; the line may be right all the same, which is for protojson to say. The
// strings that it gives share the memory of the line.
type scanner struct {
	s       string
	i       int
	unusual bool
}

func (s *scanner) stop() { s.unusual = true }

func (s *scanner) blanks() {
	for s.i < len(s.s) {
		switch s.s[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// next reports whether c is next, after blanks, and passes it.
func (s *scanner) next(c byte) bool {
	s.blanks()
	if s.i < len(s.s) && s.s[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) expect(c byte) {
	if !s.next(c) {
		s.stop()
	}
}

// over tells that all was usual, and nothing but blanks is left.
func (s *scanner) over() bool {
	s.blanks()
	return !s.unusual && s.i == len(s.s)
}

// str reads a string.
func (s *scanner) str() string {
	s.expect('"')
	for begin := s.i; s.i < len(s.s); s.i++ {
		switch c := s.s[s.i]; {
		case c == '"':
			s.i++
			return s.s[begin : s.i-1]
		case c == '\\' || c < ' ':
			s.stop()
			return ""
		}
	}
	s.stop()
	return ""
}

// object reads an object; field reads the value of each name.
func (s *scanner) object(field func(name string)) {
	s.expect('{')
	if s.unusual || s.next('}') {
		return
	}
	for {
		name := s.str()
		s.expect(':')
		if s.unusual {
			return
		}
		field(name)
		if s.unusual || s.next('}') {
			return
		}
		s.expect(',')
	}
}

// list reads an array; value reads each of its values.
func (s *scanner) list(value func()) {
	s.expect('[')
	if s.unusual || s.next(']') {
		return
	}
	for !s.unusual {
		value()
		if s.next(']') {
			return
		}
		s.expect(',')
	}
}

func (s *scanner) boolean() bool {
	s.blanks()
	switch rest := s.s[s.i:]; {
	case strings.HasPrefix(rest, "true"):
		s.i += len("true")
		return true
	case strings.HasPrefix(rest, "false"):
		s.i += len("false")
	default:
		s.stop()
	}
	return false
}

// digits reads a number without sign, fraction or leading zeros, up to limit.
func (s *scanner) digits(limit int64) int64 {
	begin := s.i
	var n int64
	for ; s.i < len(s.s) && s.s[s.i]-'0' <= 9; s.i++ {
		d := int64(s.s[s.i] - '0')
		if n > (limit-d)/10 {
			s.stop()
			return 0
		}
		n = n*10 + d
	}
	if s.i == begin || s.s[begin] == '0' && s.i-begin > 1 {
		s.stop()
	}
	return n
}

// int32 reads a number that is not negative.
func (s *scanner) int32() int32 {
	s.blanks()
	n := s.digits(math.MaxInt32)
	if s.i < len(s.s) && strings.IndexByte(".eE", s.s[s.i]) >= 0 {
		s.stop()
	}
	return int32(n) //nolint:gosec // bounded by digits
}

// int64 reads a number in a string, as proto3 JSON has it.
func (s *scanner) int64() int64 {
	v := scanner{s: s.str()}
	n := v.digits(math.MaxInt64)
	if v.unusual || v.i != len(v.s) {
		s.stop()
	}
	return n
}

// maxSeconds is far below what a duration may be.
const maxSeconds = 1e10

// duration reads seconds with a fraction, such as "1.5s", into d.
func (s *scanner) duration(d *durationpb.Duration) *durationpb.Duration {
	v := scanner{s: s.str()}
	d.Seconds = v.digits(maxSeconds)
	if v.i < len(v.s) && v.s[v.i] == '.' {
		v.i++
		begin, unit := v.i, int32(1e8)
		for ; v.i < len(v.s) && v.s[v.i]-'0' <= 9; v.i++ {
			d.Nanos += int32(v.s[v.i]-'0') * unit
			unit /= 10
		}
		if n := v.i - begin; n == 0 || n > 9 {
			v.stop()
		}
	}
	if v.unusual || v.s[v.i:] != "s" {
		s.stop()
	}
	return d
}

// labels reads an object of strings.
func (s *scanner) labels() map[string]string {
	m := make(map[string]string)
	s.object(func(name string) {
		if _, twice := m[name]; twice {
			s.stop()
		}
		m[name] = s.str()
	})
	return m
}

func (s *scanner) mode() pb.Mode { return pb.Mode(s.enum(pb.Mode_value)) }

// enum reads the name of a value.
func (s *scanner) enum(values map[string]int32) int32 {
	v, ok := values[s.str()]
	if !ok {
		s.stop()
	}
	return v
}

// seen notes which fields an object has had, by numbers from 0 to 63. A field that is
// there twice stops the scanner.
type seen uint64

func (f *seen) field(n uint, s *scanner) {
	if *f&(1<<n) != 0 {
		s.stop()
	}
	*f |= 1 << n
}
