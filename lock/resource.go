package lock

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxResourceBytes is the longest resource name in bytes of UTF-8.
const MaxResourceBytes = 512

// Resource is the name of what is locked: valid UTF-8, 1 to [MaxResourceBytes]
// bytes, no control characters. A slash is an ordinary character
// ("orders/42"). Names are compared byte by byte: no case folding, no Unicode
// normalisation.
type Resource string

// ParseResource checks a name that came from outside. The error is an
// [*InvalidError] that names the field "resource".
func ParseResource(name string) (Resource, error) {
	switch {
	case name == "":
		return "", &InvalidError{Field: "resource", Problem: "must not be empty"}
	case len(name) > MaxResourceBytes:
		return "", &InvalidError{Field: "resource", Problem: fmt.Sprintf("is %d bytes long, at most %d are allowed", len(name), MaxResourceBytes)}
	case !utf8.ValidString(name):
		return "", &InvalidError{Field: "resource", Problem: "is not valid UTF-8"}
	}
	for i, r := range name {
		if unicode.IsControl(r) {
			return "", &InvalidError{Field: "resource", Problem: fmt.Sprintf("has the control character %U at byte %d", r, i)}
		}
	}
	return Resource(name), nil
}
