package redislock

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestPasswordChanges: new connections use the password that stands in the file now, and the
// lease lives on.
func TestPasswordChanges(t *testing.T) { again(t, testPasswordChanges) }

func testPasswordChanges(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	const user = "rotating"
	root := plain(t, strings.TrimPrefix(s.URL(), "redis://"))
	file := filepath.Join(t.TempDir(), "password")
	set := func(password string) {
		t.Helper()
		if err := root.Do(t.Context(), "ACL", "SETUSER", user, "reset", "on", ">"+password, "~*", "&*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("first")
	t.Cleanup(func() { root.Do(t.Context(), "ACL", "DELUSER", user) })
	road := testengine.Through(t, s)
	at := strings.Replace(road.URL(), "redis://", "redis://"+user+"@", 1) + noGrace
	b, l := sidecar(t, at+"&password-file="+file, 5*time.Minute)
	hold(t, l, "r")

	set("second")
	road.Inject(testengine.Cut)
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease goes on with the new password", func() error { return beat(t.Context(), l) })
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 {
		t.Errorf("the lock: %+v, %v", st, err)
	}
	fixed := openAt(t, strings.Replace(at, user+"@", user+":first@", 1))
	defer func() { _ = fixed.Close() }()
	if err := fixed.Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("with the old password: %v", err)
	}
}

// TestCertificateChanges: new connections trust the authority that stands in the file now, and
// while nothing useful stands there, the one before.
func TestCertificateChanges(t *testing.T) { again(t, testCertificateChanges) }

func testCertificateChanges(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	_, ca := certificate(t)
	renewed, other := certificate(t)
	text, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	b := openAt(t, "rediss://"+tlsRoad(t, renewed, strings.TrimPrefix(s.URL(), "redis://"))+"?tls-ca="+ca)
	defer func() { _ = b.Close() }()
	for _, half := range []string{"", "-----BEGIN CERT"} {
		if half != "" {
			if err := os.WriteFile(ca, []byte(half), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var invalid *tls.CertificateVerificationError
		if err := b.Ping(t.Context()); !errors.As(err, &invalid) {
			t.Errorf("a server of another authority: %v", err)
		}
	}
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new authority is trusted", func() error { return b.Ping(t.Context()) })
}
