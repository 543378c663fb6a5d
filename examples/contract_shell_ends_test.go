package examples

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watch notes when the command ends. The tool itself ends later: it looks whether anything of the command is left, and
// says why.
func (h *shellHold) watch() error {
	if h.ended != nil {
		return nil
	}
	h.ended = make(chan struct{})
	l, _ := h.out.first("pid ")
	pid, err := strconv.Atoi(strings.TrimPrefix(l.text, "pid "))
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) { // else it has ended
		return err
	}
	go func() {
		defer close(h.ended)
		for err == nil {
			n, failed := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if n == 1 || !errors.Is(failed, unix.EINTR) {
				_ = unix.Close(fd)
				break
			}
		}
		h.endsAt = time.Now()
	}()
	return nil
}
