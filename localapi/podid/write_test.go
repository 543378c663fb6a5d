package podid

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is written down can be read, by another user too, whatever the umask of who writes.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	f := Folder(dir)
	defer syscall.Umask(syscall.Umask(0o077))
	long := said
	long.Namespace, long.Name, long.ServiceAccount = strings.Repeat("n", 63), strings.Repeat("a", maxName), strings.Repeat("s", maxName)
	for _, s := range []Said{said, long, said} {
		// What was cut off is in nobody's way.
		if err := os.WriteFile(filepath.Join(dir, "."+uid), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Write(s); err != nil {
			t.Fatal(err)
		}
		want := Principal{Namespace: s.Namespace, ServiceAccount: s.ServiceAccount, Pod: s.Name, Container: id}
		if got, err := f.Principal(Place{Pod: uid, Container: id}); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
		info, err := os.Lstat(filepath.Join(dir, uid))
		if err != nil || info.Mode() != 0o644 {
			t.Errorf("%v, %v", info, err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}

// What could not be read again is not written down.
func TestWriteOfNoPod(t *testing.T) {
	dir := t.TempDir()
	for _, change := range []func(*Said){
		func(s *Said) { s.UID = "../x" },
		func(s *Said) { s.UID = "" },
		func(s *Said) { s.Namespace = "a.b" },
		func(s *Said) { s.Name = "" },
		func(s *Said) { s.ServiceAccount = strings.Repeat("s", maxName+1) },
	} {
		s := said
		change(&s)
		if err := Folder(dir).Write(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
	if err := Folder(filepath.Join(dir, "none")).Write(said); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	f := Folder(dir)
	second := said
	second.UID = other
	for _, s := range []Said{said, second} {
		if err := f.Write(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"." + hash, "." + "x", "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Tidy(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "."+hash)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was cut off is there: %v", err)
	}
	if got, err := f.Pods(); err != nil || strings.Join(got, " ") != other+" "+uid {
		t.Errorf("%v, %v", got, err)
	}
	for range 2 {
		if err := f.Remove(uid); err != nil {
			t.Error(err)
		}
	}
	if got, err := f.Pods(); err != nil || strings.Join(got, " ") != other {
		t.Errorf("%v, %v", got, err)
	}
	if err := f.Remove("x"); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "x")); err != nil {
		t.Error(err)
	}
}
