// Package socketrule runs the cases of examples/contract/vectors/socket.json: where a
// sidecar and its clients meet when nobody says otherwise. The Go client and those in
// other languages are asked the same.
package socketrule

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// other is a user who owns nothing here.
const other = 65534

// Case is what the rule is asked with.
type Case struct {
	System string            // the folder that stands for /run/locksidecar
	Env    map[string]string // all variables that count
	UID    int               // who asks
}

// Environ is the environment as programs get it.
func (c Case) Environ() []string {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		env = append(env, name+"="+c.Env[name])
	}
	return env
}

type vector struct {
	About   string            `json:"about"`
	As      string            `json:"as"`      // "other": not the user who has made what is there
	Make    [][3]string       `json:"make"`    // kind, path, mode or what a link names
	Env     map[string]string `json:"env"`     //
	Socket  string            `json:"socket"`  // what must come out, or
	Refused []string          `json:"refused"` // what the error must say
}

// Run makes a subtest of each case of the file. resolve applies the rule.
func Run(t *testing.T, file string, resolve func(t *testing.T, c Case) (string, error)) {
	t.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // of the repository
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Cases []vector `json:"cases"`
	}
	if err := json.Unmarshal(text, &all); err != nil || len(all.Cases) == 0 {
		t.Fatalf("read %s: %d cases, %v", file, len(all.Cases), err)
	}
	for _, v := range all.Cases {
		t.Run(v.About, func(t *testing.T) { v.run(t, resolve) })
	}
}

func (v vector) run(t *testing.T, resolve func(t *testing.T, c Case) (string, error)) {
	uid := os.Getuid()
	if v.As == "other" {
		if uid != 0 {
			t.Skip("only root can ask as another user")
		}
		uid = other
	}
	dir, err := os.MkdirTemp("", "ls") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // others must get in
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$DIR", dir, "$UID", strconv.Itoa(uid))
	for _, m := range v.Make {
		if err := create(m[0], filepath.Join(dir, fill.Replace(m[1])), m[2]); err != nil {
			t.Fatalf("make %v: %v", m, err)
		}
	}
	env := make(map[string]string)
	for name, value := range v.Env {
		env[name] = fill.Replace(value)
	}
	got, err := resolve(t, Case{System: filepath.Join(dir, "run", "locksidecar"), Env: env, UID: uid})
	if len(v.Refused) == 0 {
		if want := fill.Replace(v.Socket); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
		return
	}
	if err == nil {
		t.Fatalf("got %q; it must be refused", got)
	}
	for _, words := range v.Refused {
		if words = fill.Replace(words); !strings.Contains(err.Error(), words) {
			t.Errorf("it says %q; that lacks %q", err, words)
		}
	}
}

func create(kind, path, mode string) error {
	if kind == "link" {
		return os.Symlink(mode, path)
	}
	bits, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return err
	}
	switch kind {
	case "dir":
		err = os.Mkdir(path, 0o700)
	case "file":
		err = os.WriteFile(path, nil, 0o600)
	case "socket":
		err = unix.Mknod(path, unix.S_IFSOCK|0o600, 0)
	default:
		err = fmt.Errorf("what is a %s?", kind)
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, os.FileMode(bits)) // whatever the umask says
}
