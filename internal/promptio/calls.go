//go:build !race

package promptio

import (
	"syscall"
	"unsafe"
)

// Read reads from a non-blocking fd.
func Read(fd uintptr, b []byte) (int, error) { return call(syscall.SYS_READ, fd, b) }

// Write writes to a non-blocking fd.
func Write(fd uintptr, b []byte) (int, error) { return call(syscall.SYS_WRITE, fd, b) }

// call is a system call; again where a signal has interrupted it. n is never negative.
func call(trap, fd uintptr, b []byte) (n int, err error) {
	for {
		r, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))) //nolint:gosec // as package syscall does
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// Quiet reports that there is nothing to be read from a socket, and that the other end has not ended it.
func Quiet(fd uintptr) bool {
	var b [1]byte
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b)), uintptr(len(b)), //nolint:gosec // as above
		syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return errno == syscall.EAGAIN
}
