package storeurl

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
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

// TestWithPasswordFile: the password is what stands in the file, also after a change.
func TestWithPasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("p@ss/:\n")
	for raw, user := range map[string]string{
		"redis://h:1/2?timeout=1s":         "",
		"rediss://user@h":                  "user",
		"redis+cluster://a:1,b:2,c":        "",
		"redis+sentinel://u@a,b/master?x=": "u",
	} {
		write("p@ss/:\n")
		got, err := WithPasswordFile(raw, file)
		if err != nil || strings.Contains(got, "p@ss") {
			t.Fatalf("WithPasswordFile(%q) = %q, %v", raw, got, err)
		}
		u, err := Parse(got)
		if err != nil || u.User != user || u.Password != "p@ss/:" {
			t.Fatalf("%s: %v, %+v", got, err, u)
		}
		if shown := Redact(got); !strings.Contains(shown, url.QueryEscape(file)) {
			t.Errorf("%s is shown as %s, without the file", got, shown)
		}
		write("changed")
		if now := PasswordNow(u.Password, u.PasswordFile); now != "changed" {
			t.Errorf("%s: after the change the password is %q", raw, now)
		}
	}
	if now := PasswordNow("fixed", nil); now != "fixed" {
		t.Errorf("without a file the password is %q", now)
	}
	for _, raw := range []string{"embedded:", "redis://u:secret@h", "redis://:secret@h"} {
		if got, err := WithPasswordFile(raw, file); !errors.Is(err, lock.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("WithPasswordFile(%q) = %q, %v", raw, got, err)
		}
	}
	for raw, want := range map[string]string{
		"redis://u:secret@h?password-file=" + file: "has a password already",
		"redis://u@h?password-file=/no/file":       "option password-file open /no/file",
	} {
		if _, err := Parse(raw); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", raw, err, want)
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
