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

// A pod of which nothing can be written stays what it was, and nothing half written is left.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	f := Folder(dir)
	if err := os.MkdirAll(filepath.Join(dir, uid, "x"), 0o755); err != nil { // no file can come in its place
		t.Fatal(err)
	}
	if err := f.Write(said); err == nil {
		t.Error("written over a folder")
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || !files[0].IsDir() {
		t.Errorf("%v, %v", files, err)
	}
	if err := f.Remove(uid); err == nil {
		t.Error("removed a folder with something in it")
	}
	link := filepath.Join(dir, "file")
	if err := os.WriteFile(link, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := Folder(link)
	_, looked := none.Principal(Place{Pod: uid})
	_, listed := none.Pods()
	for what, err := range map[string]error{"look up": looked, "write": none.Write(said), "remove": none.Remove(uid), "list": listed, "tidy": none.Tidy()} {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s where there is no folder: %v", what, err)
		}
	}
}

// Whatever it is asked, and however that ends, a folder leaves no file open.
func TestNoFileStaysOpen(t *testing.T) {
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	f := Folder(t.TempDir())
	before := open()
	for range 50 {
		if err := f.Write(said); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Principal(Place{Pod: uid, Container: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Principal(Place{Pod: other}); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err := f.Remove(uid); err != nil {
			t.Fatal(err)
		}
	}
	if after := open(); after > before+10 {
		t.Errorf("%d files were open, now %d", before, after)
	}
}

func TestValidPod(t *testing.T) {
	for name, want := range map[string]bool{uid: true, other: true, "": false, "." + uid: false, uid + "/": false, strings.ToUpper(uid): false} {
		if ValidPod(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}
