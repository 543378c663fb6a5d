// Package secretfile reads files that hold nothing but a secret, as Kubernetes and systemd
// mount them. They may change while the sidecar runs.
package secretfile

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
)

// maxSize bounds what is read of a file.
const maxSize = 1 << 20

// Read reads the secret. A line end at the end of the file does not belong to it. No error
// has a part of it.
func Read(path string) (string, error) {
	f, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	switch {
	case len(text) > maxSize:
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	case secret == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsAny(secret, "\r\n"):
		return "", fmt.Errorf("%s has more than one line", path)
	}
	return secret, nil
}

// File is a file whose secret may change. Its methods may be called at the same time.
type File struct {
	path string
	last atomic.Pointer[string]
}

// Open reads the file for the first time. Its errors are those of Read.
func Open(path string) (*File, error) {
	secret, err := Read(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path}
	f.last.Store(&secret)
	return f, nil
}

// Now is the secret as it stands in the file now. While the file cannot be read, such as in the
// middle of a change, it is the last one that could be.
func (f *File) Now() string {
	if secret, err := Read(f.path); err == nil {
		f.last.Store(&secret)
	}
	return *f.last.Load()
}
