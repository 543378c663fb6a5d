package storeurl

import (
	"net/url"
	"strings"
)

// hidden stands where a secret was.
const hidden = "xxxxx"

// Redact makes a store's URL fit to be shown: passwords become "xxxxx", and of
// what cannot be read only the scheme is left.
func Redact(raw string) string {
	p, ok := split(raw)
	if !ok {
		scheme, rest, ok := strings.Cut(raw, ":")
		switch {
		case !ok:
			return hidden
		case rest == "": // such as embedded:
			return raw
		}
		return scheme + ":" + hidden
	}
	u, err := Parse(raw)
	if err != nil {
		return p.scheme + "://" + hidden
	}
	if at := strings.LastIndexByte(p.tail, '@'); at >= 0 { // a password may have been cut by its own slash
		return p.scheme + "://" + hidden + p.tail[at:]
	}
	if user, _, has := strings.Cut(p.user, ":"); has {
		p.user = user + ":" + hidden + "@"
	}
	path, _, hasOptions := strings.Cut(p.tail, "?")
	if hasOptions {
		for name := range u.Options.values {
			if strings.Contains(name, "password") && !strings.HasSuffix(name, "-file") {
				u.Options.values.Set(name, hidden)
			}
		}
		path += "?" + u.Options.values.Encode()
	}
	p.tail = path
	return p.String()
}

// WithPasswordFile names, in a URL that has no password, a file with it. The error is
// lock.ErrInvalid.
func WithPasswordFile(raw, path string) (string, error) {
	p, ok := split(raw)
	if !ok {
		return "", Invalid(Redact(raw) + " takes no password")
	}
	if strings.Contains(p.user, ":") {
		return "", Invalid("has a password already")
	}
	return WithOption(raw, "password-file", path), nil
}

// WithOption adds an option to a URL.
func WithOption(raw, name, value string) string {
	mark := "?"
	if strings.Contains(raw, "?") {
		mark = "&"
	}
	return raw + mark + url.QueryEscape(name) + "=" + url.QueryEscape(value)
}
