//go:build race

package promptio

import (
	"errors"
	"syscall"
)

// The race detector takes a write to a socket and its read for an order of what is done before and after, and sees
// that in the calls of package syscall only.

// Read reads from a non-blocking fd.
func Read(fd uintptr, b []byte) (int, error) { return call(syscall.Read, fd, b) }

// Write writes to a non-blocking fd.
func Write(fd uintptr, b []byte) (int, error) { return call(syscall.Write, fd, b) }

func call(f func(int, []byte) (int, error), fd uintptr, b []byte) (int, error) {
	for {
		if n, err := f(int(fd), b); !errors.Is(err, syscall.EINTR) {
			return max(n, 0), err //nolint:wrapcheck // as package syscall says it
		}
	}
}

// Quiet reports that there is nothing to be read from a socket, and that the other end has not ended it.
func Quiet(fd uintptr) bool {
	_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return errors.Is(err, syscall.EAGAIN)
}
