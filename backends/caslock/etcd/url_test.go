package etcd

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

func TestParseURL(t *testing.T) {
	for url, want := range map[string]config{
		"etcd://h":                  {addrs: []string{"h:2379"}},
		"etcd://a:1,b,[::1]:3/app/": {addrs: []string{"a:1", "b:2379", "[::1]:3"}, prefix: "/app/"},
		"etcd://h?timeout=250ms":    {addrs: []string{"h:2379"}, timeout: 250 * time.Millisecond},
		"etcd://u:p%40@h/":          {addrs: []string{"h:2379"}, user: "u", password: "p@"},
	} {
		if want.timeout == 0 {
			want.timeout = defaultTimeout
		}
		if want.prefix == "" {
			want.prefix = "/locksidecar/"
		}
		got, err := parseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", url, diff)
		}
	}
	for _, url := range []string{"etcds://h", "etcd://h?tls=true"} {
		if c, err := parseURL(url); err != nil || c.tls == nil {
			t.Errorf("%s: %+v, %v; want TLS", url, c, err)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, word := range map[string]string{
		"etcd":               "not a URL",
		"redis://h":          "scheme",
		"etcd://":            "empty host",
		"etcd://a,,b":        "empty host",
		"etcd://h/a%01":      "control character",
		"etcd://h?timeout=1": "timeout",
		"etcd://h?no-such=1": "not known",
		"etcd://h?tls-ca=/x": "needs TLS",
		"etcd://:cret@h":     "user and a password",
		"etcd://u@h":         "user and a password",
	} {
		_, err := Open(url, nil)
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: got %v, want an error about %q", url, err, word)
		} else if strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: the error tells the password: %v", url, err)
		}
	}
}
