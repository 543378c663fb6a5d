package postgres

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestPasswordChanges: new connections use the password that stands in the file now, and the
// lease lives on.
func TestPasswordChanges(t *testing.T) { again(t, testPasswordChanges) }

func testPasswordChanges(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	owner, err := pgx.Connect(t.Context(), s.URL()+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = owner.Close(t.Context()) }()
	file := filepath.Join(t.TempDir(), "password")
	set := func(password string) {
		t.Helper()
		if _, err := owner.Exec(t.Context(), "ALTER ROLE "+testengine.User+" PASSWORD '"+password+"'"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := owner.Exec(t.Context(), "GRANT CREATE ON SCHEMA public TO "+testengine.User); err != nil {
		t.Fatal(err)
	}
	set("first")
	road := testengine.Through(t, s)
	at := strings.Replace(road.URL(), "root@", testengine.User+"@", 1)
	b, l := sidecar(t, with(at, "password-file="+file), 5*time.Minute)
	hold(t, l, "r", lock.Exclusive)

	set("second")
	road.Inject(testengine.Cut)
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease goes on with the new password", func() error {
		_, err := l.Heartbeat(t.Context())
		return err
	})
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 {
		t.Errorf("the lock: %+v, %v", st, err)
	}
	fixed := openAt(t, strings.Replace(at, testengine.User+"@", testengine.User+":first@", 1))
	defer func() { _ = fixed.Close() }()
	if err := fixed.Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "user or password") {
		t.Errorf("with the old password: %v", err)
	}
}
