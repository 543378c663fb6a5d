package mysqllock

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

func TestOpen(t *testing.T) {
	for url, want := range map[string]string{
		"mysql://a/b": "*sqllock.Backend",
		"mariadb://a/b?strategy=tables&timeout=2s": "*sqllock.Backend",
		"mysql://a/b?strategy=row":                 "*sqllock.Backend",
		"mysql://a/b?strategy=shedlock":            "*shedlock.Backend",
	} {
		b, err := Open(url, nil)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := fmt.Sprintf("%T", b); got != want {
			t.Errorf("%s: got a %s, want a %s", url, got, want)
		}
		if err := b.Close(); err != nil {
			t.Errorf("%s: Close: %v", url, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for url, want := range map[string]string{
		"redis://a/b":                        "scheme",
		"mysql://a/b?strategy=other":         "option strategy",
		"mysql://a/b?unheard=of":             "option unheard is not known",
		"mysql://a/b?log-keep=-1s":           "option log-keep",
		"mysql://a/b?strategy=row&unheard=x": "option unheard is not known",
	} {
		b, err := Open(url, nil)
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || b != nil {
			t.Errorf("%s: got %v, %v, want an InvalidError with %q", url, b, err, want)
		}
	}
}

func TestSchema(t *testing.T) {
	for _, strategy := range Strategies {
		text, err := Schema(strategy, "some_")
		if err != nil || !strings.Contains(text, "`some_") || strings.Contains(text, "{") {
			t.Errorf("%s: got %v and\n%s", strategy, err, text)
		}
	}
	if text, err := Schema(Tables, "a`b"); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a prefix with a quote: %v and\n%s", err, text)
	}
	if _, err := Schema("other", ""); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("another strategy: %v", err)
	}
}
