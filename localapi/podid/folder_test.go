package podid

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var said = Said{UID: uid, Namespace: "shop", Name: "orders-7d4b9", ServiceAccount: "orders"}

// write makes the file of a pod.
func write(t *testing.T, dir string, s any) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, uid), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// padded makes the file of a pod so large.
func padded(t *testing.T, dir string, size int) {
	t.Helper()
	write(t, dir, said)
	text, err := os.ReadFile(filepath.Join(dir, uid))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, uid), append(text, strings.Repeat(" ", size-len(text))...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files counts the open files of this process.
func files(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

func TestPrincipal(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, said)
	place, err := Pod(podScope)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Folder(dir).Principal(place)
	want := Principal{Namespace: "shop", ServiceAccount: "orders", Pod: "orders-7d4b9", Container: id}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	long := said
	long.Name = strings.Repeat("a", 253)
	write(t, dir, long)
	if got, err := Folder(dir).Principal(place); err != nil || got.Pod != long.Name {
		t.Errorf("the longest name: %+v, %v", got, err)
	}
	padded(t, dir, 4096)
	before := files(t)
	if got, err := Folder(dir).Principal(place); err != nil || got != want {
		t.Errorf("the largest file: %+v, %v", got, err)
	}
	if after := files(t); after != before {
		t.Errorf("%d files are left open", after-before)
	}
	if err := os.Remove(filepath.Join(dir, uid)); err != nil {
		t.Fatal(err)
	}
	if got, err := Folder(dir).Principal(place); !errors.Is(err, fs.ErrNotExist) || got != (Principal{}) {
		t.Errorf("a pod of which nothing was said: %+v, %v", got, err)
	}
}

// TestNoPrincipal: a file that is not as the kubelet's words are written down says nothing.
func TestNoPrincipal(t *testing.T) {
	with := func(change func(*Said)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			s := said
			change(&s)
			write(t, dir, s)
		}
	}
	file := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, uid), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	whole, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(*testing.T, string){
		"another pod's":           with(func(s *Said) { s.UID = other }),
		"no uid":                  with(func(s *Said) { s.UID = "" }),
		"no namespace":            with(func(s *Said) { s.Namespace = "" }),
		"a namespace with a dot":  with(func(s *Said) { s.Namespace = "a.b" }),
		"a namespace too long":    with(func(s *Said) { s.Namespace = strings.Repeat("a", 64) }),
		"a namespace and a slash": with(func(s *Said) { s.Namespace = "a/b" }),
		"no name":                 with(func(s *Said) { s.Name = "" }),
		"a name with a colon":     with(func(s *Said) { s.Name = "a:b" }),
		"a name too long":         with(func(s *Said) { s.Name = strings.Repeat("a", 254) }),
		"no account":              with(func(s *Said) { s.ServiceAccount = "" }),
		"an account in capitals":  with(func(s *Said) { s.ServiceAccount = "Root" }),
		"empty":                   file(""),
		"cut off":                 file(string(whole[:len(whole)-1])),
		"two of them":             file(string(whole) + string(whole)),
		"a field more":            file(`{"admin":true,` + string(whole[1:])),
		"too long":                func(t *testing.T, dir string) { padded(t, dir, 4097) },
		"a folder": func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, uid), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, dir string) {
			write(t, dir, said)
			if err := os.Rename(filepath.Join(dir, uid), filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("x", filepath.Join(dir, uid)); err != nil {
				t.Fatal(err)
			}
		},
		"a pipe": func(t *testing.T, dir string) {
			if err := syscall.Mkfifo(filepath.Join(dir, uid), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			set(t, dir)
			if got, err := Folder(dir).Principal(Place{Pod: uid, Container: id}); err == nil || got != (Principal{}) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	if got, err := Folder(t.TempDir()).Principal(Place{Pod: "../x"}); err == nil {
		t.Errorf("a way out: %+v", got)
	}
	if got, err := Folder(filepath.Join(t.TempDir(), "none")).Principal(Place{Pod: uid}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %+v, %v", got, err)
	}
}
