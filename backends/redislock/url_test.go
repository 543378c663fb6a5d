package redislock

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
		"redis://h":                        {scheme: "redis", addrs: []string{"h:6379"}, buckets: 1},
		"redis://u:p%40@h:1/3?prefix=x":    {scheme: "redis", addrs: []string{"h:1"}, username: "u", password: "p@", db: 3, prefix: "x", buckets: 1},
		"redis://[::1]:1":                  {scheme: "redis", addrs: []string{"[::1]:1"}, buckets: 1},
		"redis://[::1]":                    {scheme: "redis", addrs: []string{"[::1]:6379"}, buckets: 1},
		"redis://:secret@h?timeout=250ms":  {scheme: "redis", addrs: []string{"h:6379"}, password: "secret", timeout: 250 * time.Millisecond, buckets: 1},
		"redis://h?restart-grace=0s":       {scheme: "redis", addrs: []string{"h:6379"}, buckets: 1, grace: 1},
		"redis://h?allow-eviction=true":    {scheme: "redis", addrs: []string{"h:6379"}, buckets: 1, allowEviction: true},
		"redis://h?wait-replicas=2":        {scheme: "redis", addrs: []string{"h:6379"}, replicas: 2, buckets: 1},
		"redis+cluster://a:1,b,c:3":        {scheme: "redis+cluster", addrs: []string{"a:1", "b:6379", "c:3"}, buckets: 64},
		"redis+sentinel://a,b:2/main?db=2": {scheme: "redis+sentinel", addrs: []string{"a:26379", "b:2"}, master: "main", db: 2, buckets: 1},
		"redis+sentinel://u:p@a/main?sentinel-username=s&sentinel-password=t": {scheme: "redis+sentinel", addrs: []string{"a:26379"}, master: "main",
			username: "u", password: "p", sentinelUser: "s", sentinelPassword: "t", buckets: 1},
	} {
		if want.prefix == "" {
			want.prefix = defaultPrefix
		}
		if want.timeout == 0 {
			want.timeout = defaultTimeout
		}
		want.grace-- // so that the table need not say -1 everywhere
		got, err := parseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", url, diff)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, word := range map[string]string{
		"redis":                             "not a URL",
		"http://h":                          "scheme",
		"redis://a,b":                       "several hosts",
		"redis://":                          "empty host",
		"redis://h/x":                       "database number",
		"redis+cluster://a/1":               "no path",
		"redis+sentinel://a":                "name of the master",
		"redis://h?prefix=a{b":              "prefix",
		"redis://h?prefix=a*":               "prefix",
		"redis://h?prefix=a%3F":             "prefix",
		"redis://h?prefix=a%5Bb":            "prefix",
		"redis://h?prefix=a:b":              "prefix",
		"redis://h?timeout=1":               "timeout",
		"redis://h?timeout=1ms":             "timeout",
		"redis://h?restart-grace=-1s":       "restart-grace",
		"redis://h?allow-eviction=maybe":    "allow-eviction",
		"redis://h?no-such=1":               "not known",
		"redis+cluster://h?db=1":            "db is not known",
		"redis+cluster://h?wait-replicas=1": "wait-replicas is not known",
		"redis://h?tls-ca=/x":               "needs TLS",
		"rediss://h?tls-ca=/no/such":        "tls-ca",
		"rediss://h?tls-cert=/no/such":      "go together",
		"redis://u:se%zzcret@h":             "not a URL",
	} {
		_, err := parseURL(url)
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: got %v, want an error about %q", url, err, word)
		} else if strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: the error tells the password: %v", url, err)
		}
	}
}
