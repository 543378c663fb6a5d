package lock

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestParseResource(t *testing.T) {
	for _, name := range []string{
		"a", "orders/42", "/", " ", "é", "日本/語", "a{b}:c*?[d]", "\u00a0", strings.Repeat("x", MaxResourceBytes), strings.Repeat("é", MaxResourceBytes/2),
	} {
		if r, err := ParseResource(name); err != nil || string(r) != name {
			t.Errorf("%q: got %q, %v", name, r, err)
		}
	}
	for name, problem := range map[string]string{
		"":                                      "empty",
		strings.Repeat("x", MaxResourceBytes+1): "513 bytes",
		"a\xffb":                                "UTF-8",
		"\xed\xa0\x80":                          "UTF-8", // half a surrogate pair
		"a\x00b":                                "U+0000 at byte 1",
		"line\n":                                "U+000A at byte 4",
		"\x7f":                                  "U+007F",
		"é\u0085":                               "U+0085 at byte 2",
	} {
		_, err := ParseResource(name)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) || invalid.Field != "resource" || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: got %v, want an InvalidError about %q", name, err, problem)
		}
	}
}

// FuzzParseResource: what is let through keeps every promise of Resource, and
// what is refused breaks one.
func FuzzParseResource(f *testing.F) {
	for _, s := range []string{"", "a", "orders/42", "a\xff", "\x00", "日本", strings.Repeat("x", 513)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		good := name != "" && len(name) <= MaxResourceBytes && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
		r, err := ParseResource(name)
		switch {
		case good != (err == nil):
			t.Errorf("%q: %v", name, err)
		case err == nil && string(r) != name:
			t.Errorf("%q became %q", name, r)
		}
	})
}
