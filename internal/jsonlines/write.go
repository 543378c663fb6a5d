package jsonlines

import (
	"errors"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
)

var errUTF8 = errors.New("a string is not valid UTF-8")

// writer appends a line to b, with the text that protojson would give, without blanks.
type writer struct {
	b     []byte
	wrong bool // a string is not valid UTF-8
}

// line ends the line.
func (w *writer) line() ([]byte, error) {
	if w.wrong {
		return w.b, errUTF8
	}
	return append(w.b, '\n'), nil
}

func (w *writer) begin() { w.b = append(w.b, '{') }
func (w *writer) end()   { w.b = append(w.b, '}') }

// name writes the name of a field, which is ours, behind a comma where one is needed.
func (w *writer) name(name string) {
	w.comma()
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) comma() {
	if c := w.b[len(w.b)-1]; c != '{' && c != '[' {
		w.b = append(w.b, ',')
	}
}

func (w *writer) text(name, v string) {
	w.name(name)
	w.str(v)
}

func (w *writer) optional(name, v string) {
	if v != "" {
		w.text(name, v)
	}
}

func (w *writer) str(v string) {
	w.b = append(w.b, '"')
	plain := true
	for i := range len(v) {
		if c := v[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		w.b = append(w.b, v...)
	} else {
		w.escaped(v)
	}
	w.b = append(w.b, '"')
}

func (w *writer) escaped(v string) {
	if !utf8.ValidString(v) {
		w.wrong = true
		return
	}
	const hex = "0123456789abcdef"
	for i := range len(v) {
		switch c := v[i]; c {
		case '"', '\\':
			w.b = append(w.b, '\\', c)
		case '\b':
			w.b = append(w.b, `\b`...)
		case '\f':
			w.b = append(w.b, `\f`...)
		case '\n':
			w.b = append(w.b, `\n`...)
		case '\r':
			w.b = append(w.b, `\r`...)
		case '\t':
			w.b = append(w.b, `\t`...)
		default:
			if c < ' ' {
				w.b = append(w.b, `\u00`...)
				c, w.b = hex[c&15], append(w.b, hex[c>>4])
			}
			w.b = append(w.b, c)
		}
	}
}

// enum writes the name of a value, or its number where this program does not know it.
// list writes strings.
func (w *writer) list(all []string) {
	w.b = append(w.b, '[')
	for _, v := range all {
		w.comma()
		w.str(v)
	}
	w.b = append(w.b, ']')
}

func (w *writer) enum(v int32, names map[int32]string) {
	if name, ok := names[v]; ok {
		w.str(name)
		return
	}
	w.number(v)
}

func (w *writer) number(v int32) { w.b = strconv.AppendInt(w.b, int64(v), 10) }

// int64 writes a number as proto3 JSON has it.
func (w *writer) int64(name string, v int64) {
	w.name(name)
	w.b = append(w.b, '"')
	w.b = strconv.AppendInt(w.b, v, 10)
	w.b = append(w.b, '"')
}

func (w *writer) boolean(name string, v bool) {
	w.name(name)
	w.b = strconv.AppendBool(w.b, v)
}

func (w *writer) optionalDuration(name string, d *durationpb.Duration) {
	if d == nil {
		return
	}
	w.name(name)
	w.b = append(w.b, '"')
	seconds, nanos := d.GetSeconds(), d.GetNanos()
	if seconds < 0 || nanos < 0 {
		w.b = append(w.b, '-')
		seconds, nanos = -seconds, -nanos
	}
	w.b = strconv.AppendInt(w.b, seconds, 10)
	if nanos != 0 {
		w.b = append(w.b, '.')
		begin := len(w.b)
		w.b = strconv.AppendInt(w.b, 1e9+int64(nanos), 10) // its first digit keeps the zeros
		w.b = slices.Delete(w.b, begin, begin+1)
		for string(w.b[len(w.b)-3:]) == "000" {
			w.b = w.b[:len(w.b)-3]
		}
	}
	w.b = append(w.b, 's', '"')
}

func (w *writer) optionalLabels(name string, m map[string]string) {
	if len(m) == 0 {
		return
	}
	w.name(name)
	w.labels(m)
}

// labels writes an object of strings, in the order of its names.
func (w *writer) labels(m map[string]string) {
	w.begin()
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		w.comma()
		w.str(name)
		w.b = append(w.b, ':')
		w.str(m[name])
	}
	w.end()
}
