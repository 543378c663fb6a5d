package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Listener is the number of the process on this machine that listens on a TCP
// port; 0 if there is none that may be seen, as when it runs in a container.
func Listener(port int) int {
	var sockets []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(table) //nolint:gosec // paths of our own
		sockets = append(sockets, listening(string(b), port)...)
	}
	for _, s := range sockets {
		if pid := owner(s); pid != 0 {
			return pid
		}
	}
	return 0
}

// listening are the inodes of the sockets in a table of the kernel's that
// listen on a port. See proc(5).
func listening(table string, port int) (inodes []string) {
	const (
		local, state, inode = 1, 3, 9
		listen              = "0A"
	)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > inode && f[state] == listen && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
			inodes = append(inodes, f[inode])
		}
	}
	return inodes
}

// owner is the process that has a socket open.
func owner(inode string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, f := range files {
		if to, err := os.Readlink(f); err != nil || to != "socket:["+inode+"]" {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
		return pid
	}
	return 0
}
