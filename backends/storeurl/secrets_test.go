package storeurl

import (
	"errors"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

func TestRedact(t *testing.T) {
	for raw, want := range map[string]string{
		"embedded:":                                       "embedded:",
		"redis://h:1/2?timeout=1s":                        "redis://h:1/2?timeout=1s",
		"redis://user@h":                                  "redis://user@h",
		"redis://user:secret@h/1":                         "redis://user:xxxxx@h/1",
		"redis://:secret@h":                               "redis://:xxxxx@h",
		"redis+cluster://u:sec@ret@a:1,b:2":               "redis+cluster://u:xxxxx@a:1,b:2",
		"redis+sentinel://a,b/m?sentinel-password=secret": "redis+sentinel://a,b/m?sentinel-password=xxxxx",
		"mysql://u:secret@h?socket=/s":                    "mysql://u:xxxxx@h?socket=%2Fs",

		// Written wrongly: the password is cut off by its own characters.
		"redis://u:secret/x@h/1":   "redis://xxxxx",
		"redis://u:12/secret@h/1":  "redis://xxxxx@h/1",
		"redis://u:12?secret@h/1":  "redis://xxxxx@h/1",
		"redis://u:12#secret@h/1":  "redis://xxxxx@h/1",
		"redis://u:se%zzcret@h":    "redis://xxxxx",
		"redis:u:secret@h":         "redis:xxxxx",
		"secret":                   "xxxxx",
		"redis://h?%zzsecret=1":    "redis://xxxxx",
		"redis://h?a=1#secret":     "redis://h?a=1",
		"redis://u:secret@":        "redis://xxxxx",
		"redis://u:secret@a,,b/x?": "redis://xxxxx",
	} {
		if got := Redact(raw); got != want || strings.Contains(got, "secret") {
			t.Errorf("Redact(%q) = %q; want %q", raw, got, want)
		}
	}
}

func TestWithPassword(t *testing.T) {
	const password = "p@ss/:"
	for raw, want := range map[string]string{
		"redis://h:1/2?timeout=1s":         "redis://:p%40ss%2F%3A@h:1/2?timeout=1s",
		"rediss://user@h":                  "rediss://user:p%40ss%2F%3A@h",
		"redis+cluster://a:1,b:2,c":        "redis+cluster://:p%40ss%2F%3A@a:1,b:2,c",
		"redis+sentinel://u@a,b/master?x=": "redis+sentinel://u:p%40ss%2F%3A@a,b/master?x=",
	} {
		got, err := WithPassword(raw, password)
		if err != nil || got != want {
			t.Errorf("WithPassword(%q) = %q, %v; want %q", raw, got, err, want)
		}
		if u, err := Parse(got); err != nil || u.Password != password {
			t.Errorf("%s: %v, password %q", got, err, u.Password)
		}
	}
	for _, raw := range []string{"embedded:", "redis://u:secret@h", "redis://:secret@h"} {
		if got, err := WithPassword(raw, password); !errors.Is(err, lock.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("WithPassword(%q) = %q, %v", raw, got, err)
		}
	}
}

func TestWithOption(t *testing.T) {
	for raw, want := range map[string]string{"zk://h": "zk://h?a=b%26c", "zk://h?x=1": "zk://h?x=1&a=b%26c"} {
		if got := WithOption(raw, "a", "b&c"); got != want {
			t.Errorf("WithOption(%q) = %q; want %q", raw, got, want)
		}
	}
}
