// Package backends opens a store by its URL.
package backends

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/backends/mysqllock"
	"github.com/locksidecar/locksidecar/backends/redislock"
	"github.com/locksidecar/locksidecar/backends/zklock"
	"github.com/locksidecar/locksidecar/lock"
)

// Schemes are the URL schemes that Open takes.
func Schemes() []string {
	return slices.Concat([]string{"embedded"}, redislock.Schemes, zklock.Schemes, mysqllock.Schemes)
}

// Open makes a backend for a URL. It does not ask the store anything, so a
// store that is down is no error here. The error is lock.ErrInvalid.
// observe, which may be nil, is told of every request to the store; the
// embedded store has none.
func Open(rawURL string, observe lock.Observe) (lock.Backend, error) {
	scheme, rest, ok := strings.Cut(rawURL, ":")
	switch {
	case !ok:
		return nil, &lock.InvalidError{Field: "store", Problem: "is not a URL such as embedded: or redis://127.0.0.1:6379"}
	case scheme == "embedded":
		if rest != "" {
			return nil, &lock.InvalidError{Field: "store", Problem: "has something after embedded:"}
		}
		return embedded.New(), nil
	case slices.Contains(redislock.Schemes, scheme):
		return opened(redislock.Open(rawURL, observe))
	case slices.Contains(zklock.Schemes, scheme):
		return opened(zklock.Open(rawURL, observe))
	case slices.Contains(mysqllock.Schemes, scheme):
		return mysqllock.Open(rawURL, observe)
	}
	return nil, &lock.InvalidError{Field: "store", Problem: fmt.Sprintf("scheme %q is not one of %s", scheme, strings.Join(Schemes(), ", "))}
}

// opened keeps a nil pointer from becoming an interface that is not nil.
func opened[B lock.Backend](b B, err error) (lock.Backend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Redact makes a store's URL fit to be shown: passwords become "xxxxx".
func Redact(rawURL string) string {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return rawURL
	}
	rest, query, hasQuery := strings.Cut(rest, "?")
	end := strings.IndexByte(rest, '/')
	if end < 0 {
		end = len(rest)
	}
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		if user, _, hasPassword := strings.Cut(rest[:at], ":"); hasPassword {
			rest = user + ":xxxxx" + rest[at:]
		}
	}
	if hasQuery {
		values, err := url.ParseQuery(query)
		if err != nil {
			return scheme + "://" + rest
		}
		for name := range values {
			if strings.Contains(name, "password") {
				values.Set(name, "xxxxx")
			}
		}
		rest += "?" + values.Encode()
	}
	return scheme + "://" + rest
}
