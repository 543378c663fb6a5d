package lock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Clock tells the time since some fixed moment. Deadlines of leases are kept on
// one Clock and never compared with a store's time or with the wall clock.
type Clock func() time.Duration

// BootTime is the Clock for production: CLOCK_BOOTTIME, which nobody can set
// and which, unlike Go's monotonic time, goes on while the machine is suspended.
func BootTime() time.Duration {
	var ts unix.Timespec
	// Raw: it does not block, so Go's scheduler need not be told of it; see internal/promptio.
	_, _, err := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // as x/sys does
	if err != 0 {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// GoTime returns a Clock on Go's monotonic time, for tests under testing/synctest.
func GoTime() Clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
