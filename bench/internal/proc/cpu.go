package proc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time that a process has used so far; 0 means this one.
// See clock_getcpuclockid(3): the clock of a process is made of its number.
func CPU(pid int) (time.Duration, error) {
	const processClock = 2 // CPUCLOCK_SCHED, of all threads
	clock := int32(unix.CLOCK_PROCESS_CPUTIME_ID)
	if pid != 0 {
		clock = int32(^pid<<3 | processClock) //nolint:gosec // as the kernel reads it
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
