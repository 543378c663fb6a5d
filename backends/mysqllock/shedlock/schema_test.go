package shedlock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestSchemaMissing(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		prefix := "missing_" + random() + "_"
		b := openAt(t, s.URL()+"?migrate=false&prefix="+prefix)
		defer func() { _ = b.Close() }()
		_, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "locksidecar schema mysql") {
			t.Errorf("OpenLease without tables: got %v, want ErrUnavailable that says what to do", err)
		}
		exec(t, s.URL(), mysql.Schema(prefix)+Schema())
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
		if err != nil {
			t.Fatalf("OpenLease with the tables of Schema: %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://a/b?table=x`y":             "option table",
		"mysql://a/b?table=":                "option table",
		"mysql://a/b?time-zone='":           "option time-zone",
		"mysql://a/b?restart-grace=1s":      "restart-grace is not known",
		"mysql://a/b?table=t&time-zone=UTC": "",
	} {
		cfg, err := mysql.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Open(cfg, nil)
		switch {
		case want == "" && err != nil, want != "" && (!errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want an InvalidError with %q", raw, err, want)
		case err == nil:
			_ = b.Close()
		}
	}
}

func TestASCII(t *testing.T) {
	for name, want := range map[string]string{"": "", "pod-1": "pod-1", "größe 7\n": "gr??e?7?", strings.Repeat("x", 300): strings.Repeat("x", 180)} {
		if got := ascii(name); got != want {
			t.Errorf("%q became %q, want %q", name, got, want)
		}
	}
}
