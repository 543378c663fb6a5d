package storeurl

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestParse(t *testing.T) {
	u, err := Parse("zk://u:p%40ss@a:1,[::1],c/x/y/?n=3&d=1m&b=true&w=two&s=t%26u")
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme != "zk" || u.User != "u" || u.Password != "p@ss" || u.Path != "x/y" {
		t.Errorf("got %+v", u)
	}
	if got := u.Addrs("9"); !slices.Equal(got, []string{"a:1", "[::1]:9", "c:9"}) {
		t.Errorf("Addrs: %q", got)
	}
	o := u.Options
	if o.Int("n", 0, 1, 3) != 3 || o.Duration("d", 0, 0, time.Hour) != time.Minute || !o.Bool("b", false) ||
		o.OneOf("w", "one", "one", "two") != "two" || o.String("s", "") != "t&u" || o.Has("x") || !o.Has("n") || o.TLS(false) != nil {
		t.Errorf("options of %+v", o.values)
	}
	if o.Int("n2", 7, 0, 9) != 7 || o.Duration("d2", time.Second, 0, 0) != time.Second || !o.Bool("b2", true) ||
		o.OneOf("w2", "one") != "one" || o.String("s2", "usual") != "usual" {
		t.Error("what is not given is not as usual")
	}
	if err := o.Err(); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	read := func(o *Options) {
		o.Int("n", 0, 1, 3)
		o.Duration("d", 0, 10*time.Millisecond, time.Hour)
		o.Bool("b", false)
		o.OneOf("w", "one", "one", "two")
		o.TLS(false)
	}
	for raw, want := range map[string]string{
		"nothing":                       "is not a URL",
		"zk://h:secret:1@a/%zz":         "is not a URL",
		"zk://":                         "has an empty host",
		"zk://a,,b":                     "has an empty host",
		"zk://a?%zz=secret":             "has options that cannot be read",
		"zk://a?n=4":                    "option n must be a number from 1 to 3",
		"zk://a?n=x":                    "option n must be a number from 1 to 3",
		"zk://a?d=1":                    "option d must be a duration from 10ms to 1h",
		"zk://a?d=1ms":                  "option d must be a duration from 10ms to 1h",
		"zk://a?b=maybe":                "option b must be true or false",
		"zk://a?w=three":                "option w must be one of one, two",
		"zk://a?z=1&y=2":                "option y is not known",
		"zk://a?tls-ca=/x":              "option tls-… needs TLS: add tls=true",
		"zk://a?tls=1&tls-ca=/no/ca":    "option tls-ca open /no/ca",
		"zk://a?tls=1&tls-key=/x":       "option tls-cert and tls-key go together",
		"zk://a?tls=1&tls-ca=/dev/null": "option tls-ca has no certificate in it",
	} {
		u, err := Parse(raw)
		if err == nil {
			read(u.Options)
			err = u.Options.Err()
		}
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", raw, err, want)
		}
	}
}
