package localapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/locksidecar/locksidecar/internal/jsonlines"
)

const (
	contentJSON  = "application/json"
	nameDuration = "google.protobuf.Duration"
)

var typeJSON = []string{contentJSON} // for all answers

// read fills q from the path, and from the body of a POST or the query of any
// other request. Whatever Content-Type says, a body is JSON: curl -d says that
// it is a form.
func (s *Server) read(w http.ResponseWriter, r *http.Request, q proto.Message, vars []pathVar) error {
	var body []byte
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("query", "is not well escaped")
	}
	if r.Method == http.MethodPost {
		for name := range query {
			return invalid(name, "must be in the JSON body, and not in the query")
		}
		if body, err = s.readBody(w, r); err != nil {
			return err
		}
	} else {
		if r.ContentLength != 0 {
			return invalid("body", "must be empty: %s takes its fields from the query", r.Method)
		}
		if body, err = queryJSON(query, q); err != nil {
			return err
		}
	}
	if err := decode(body, q); err != nil {
		return err
	}
	return setVars(q, vars)
}

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if c, err := connOf(r.Context()); err == nil { // who keeps us waiting is not yet in a call
		s.places.leave(c)
		defer s.places.enter(c)
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.o.Limits.Body)) // all of our connections have deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.o.Limits.MessageBytes)))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, refuse(reasonLimit, "the body is larger than %d bytes", tooLarge.Limit)
	case err != nil:
		return nil, invalid("body", "did not come in full within %s", s.o.Limits.Body)
	}
	_ = control.SetReadDeadline(time.Time{})
	return body, nil
}

// queryJSON makes the JSON object of a q that the query stands for. In proto3 JSON
// numbers may be strings, but no booleans.
func queryJSON(query url.Values, q proto.Message) ([]byte, error) {
	if len(query) == 0 {
		return nil, nil
	}
	object := make(map[string]any, len(query))
	fields := q.ProtoReflect().Descriptor().Fields()
	for name, values := range query {
		switch {
		case len(values) != 1:
			return nil, invalid(name, "is given %d times", len(values))
		case !utf8.ValidString(name) || !utf8.ValidString(values[0]): // json.Marshal would change it
			return nil, invalid(strings.ToValidUTF8(name, "\uFFFD"), "is not valid UTF-8")
		}
		object[name] = values[0]
		if f := fields.ByJSONName(name); f != nil && f.Kind() == protoreflect.BoolKind && (values[0] == "true" || values[0] == "false") {
			object[name] = values[0] == "true"
		}
	}
	return json.Marshal(object)
}

// setVars puts what stood in the path into q. A body that says something else is
// a mistake.
func setVars(q proto.Message, vars []pathVar) error {
	m := q.ProtoReflect()
	for _, v := range vars {
		if !utf8.ValidString(v.value) {
			return invalid(v.name, "is not valid UTF-8")
		}
		field := m.Descriptor().Fields().ByName(protoreflect.Name(v.name))
		if in := m.Get(field).String(); in != "" && in != v.value {
			return invalid(v.name, "is %q in the path and %q beside it", v.value, in)
		}
		m.Set(field, protoreflect.ValueOfString(v.value))
	}
	return nil
}

// decode reads proto3 JSON. Nothing at all counts as {}.
func decode(body []byte, q proto.Message) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if jsonlines.Parse(body, q) != nil {
		return whyNot("body", body, q)
	}
	return nil
}

// whyNot finds the field at which a request is wrong, whose text is called what.
// protojson's own texts are not stable, and speak of Go.
func whyNot(what string, body []byte, q proto.Message) error {
	if !utf8.Valid(body) {
		return invalid(what, "is not valid UTF-8")
	}
	var object map[string]json.RawMessage
	var syntax *json.SyntaxError
	switch jsonErr := json.Unmarshal(body, &object); {
	case errors.As(jsonErr, &syntax):
		return invalid(what, "is not JSON: %s at byte %d", syntax.Error(), syntax.Offset)
	case jsonErr != nil || object == nil:
		return invalid(what, "must be a JSON object")
	}
	fields := q.ProtoReflect().Descriptor().Fields()
	for name, value := range object {
		field := fields.ByJSONName(name)
		if field == nil {
			field = fields.ByTextName(name)
		}
		if field == nil {
			return invalid(name, "is not a field of this request; it has %s", fieldNames(fields))
		}
		one, _ := json.Marshal(map[string]json.RawMessage{name: value}) // valid JSON before
		switch probe := q.ProtoReflect().New(); {
		case protojson.Unmarshal(one, probe.Interface()) == nil:
		case field.IsMap() || field.Kind() != protoreflect.MessageKind || field.Message().FullName() == nameDuration:
			return invalid(name, "must be %s", shape(field))
		default:
			return whyNot(name, value, probe.Mutable(field).Message().Interface())
		}
	}
	return invalid(what, "cannot be read: a field is there twice, or its value is out of range") // as far as we know
}

func fieldNames(fields protoreflect.FieldDescriptors) string {
	names := make([]string, 0, fields.Len())
	for i := range fields.Len() {
		names = append(names, fields.Get(i).JSONName())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// shape says how a value of a field is written.
func shape(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return `an object of strings, such as {"job": "42"}`
	case f.Kind() == protoreflect.EnumKind:
		values := f.Enum().Values()
		var names []string
		for i := range values.Len() {
			if v := values.Get(i); v.Number() != 0 {
				names = append(names, string(v.Name()))
			}
		}
		return "one of " + strings.Join(names, ", ")
	case f.Kind() == protoreflect.MessageKind && f.Message().FullName() == nameDuration:
		return `a time in seconds, such as "0.5s" or "300s"`
	case f.Kind() == protoreflect.StringKind:
		return "a string"
	default:
		return fmt.Sprintf("of type %s", f.Kind())
	}
}

// usualAnswer is more than most answers take.
const usualAnswer = 256

// marshalJSON gives one line of proto3 JSON.
func marshalJSON(m proto.Message) ([]byte, error) {
	return jsonlines.Append(make([]byte, 0, usualAnswer), m)
}

// marshalStatus is marshalJSON for an error; of one that cannot be marshalled it says
// that. The code is that of HTTP.
func marshalStatus(st *statuspb.Status) (code int, line []byte) {
	line, err := marshalJSON(st)
	if err != nil {
		st = toStatus(err)
		line, _ = marshalJSON(st) // all of it is ours
	}
	return httpCode(st), line
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header()["Content-Type"] = typeJSON
	w.WriteHeader(code)
	_, _ = w.Write(body) //nolint:gosec // it is JSON, and says so
}

func writeStatus(w http.ResponseWriter, st *statuspb.Status) {
	code, line := marshalStatus(st)
	writeJSON(w, code, line)
}
