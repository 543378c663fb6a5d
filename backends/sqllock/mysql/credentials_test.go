package mysql

import (
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
	s := testengine.New(t, testengine.MariaDB)
	admin := openAt(t, s.URL())
	defer func() { _ = admin.Close() }()
	file := filepath.Join(t.TempDir(), "password")
	set := func(password string) {
		t.Helper()
		execute(t, admin, "ALTER USER '"+testengine.User+"'@'%' IDENTIFIED BY '"+password+"'")
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("first")
	road := testengine.Through(t, s)
	at := strings.Replace(road.URL(), "root@", testengine.User+"@", 1)
	b, l := sidecar(t, with(at, "password-file="+file), 5*time.Minute)
	r := unique("r")
	hold(t, l, r)

	set("second")
	road.Inject(testengine.Cut)
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease goes on with the new password", func() error { return beat(t.Context(), l) })
	if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) != 1 {
		t.Errorf("the lock: %+v, %v", st, err)
	}
	fixed := openAt(t, strings.Replace(at, testengine.User+"@", testengine.User+":first@", 1))
	defer func() { _ = fixed.Close() }()
	if err := fixed.Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "user or password") {
		t.Errorf("with the old password: %v", err)
	}
}
