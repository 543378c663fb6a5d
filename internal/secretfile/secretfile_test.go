package secretfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for _, c := range []struct{ content, want, wantErr string }{
		{content: "s3cret\n", want: "s3cret"},
		{content: "s3cret", want: "s3cret"},
		{content: " spaces count \r\n", want: " spaces count "},
		{content: "\n", wantErr: "is empty"},
		{content: "a\nb\n", wantErr: "more than one line"},
	} {
		write(t, path, c.content)
		got, err := Read(path)
		if got != c.want || (err == nil) != (c.wantErr == "") || (err != nil && !strings.Contains(err.Error(), c.wantErr)) {
			t.Errorf("Read of %q = %q, %v; want %q, %q", c.content, got, err, c.want, c.wantErr)
		}
	}
	for _, none := range []string{path + "-none", t.TempDir()} { // no file, and a folder
		if got, err := Read(none); err == nil || !strings.Contains(err.Error(), none) {
			t.Errorf("%s: %q, %v", none, got, err)
		}
	}
}

// TestSize: a file of a mebibyte is read, and one byte more is refused.
func TestSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for size, fails := range map[int]bool{1 << 20: false, 1<<20 + 1: true, 1 << 21: true} {
		write(t, path, string(bytes.Repeat([]byte("x"), size)))
		got, err := Read(path)
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes")):
			t.Errorf("%d bytes: %v", size, err)
		case !fails && (err != nil || len(got) != size):
			t.Errorf("%d bytes: %d are read, %v", size, len(got), err)
		}
	}
}

// TestChange: what stands in the file now counts, and what stood there before counts while
// nothing can be read.
func TestChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if _, err := Open(path); err == nil {
		t.Fatal("a file that is not there was opened")
	}
	write(t, path, "one\n")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ content, want string }{{"two\n", "two"}, {"", "two"}, {"three", "three"}} {
		write(t, path, step.content)
		if got := f.Now(); got != step.want {
			t.Errorf("with %q in the file it is %q, want %q", step.content, got, step.want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := f.Now(); got != "three" {
		t.Errorf("without the file it is %q", got)
	}
}
