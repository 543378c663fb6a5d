package csi

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// point is a step at whose beginning the driver is killed: a call of the kernel, by its number and
// one of its flags.
type point struct {
	name  string
	calls []uint32
	flags *uint32 // the third argument; nil: whatever
}

var (
	noFlags   = new(uint32)
	removeDir = new(uint32(unix.AT_REMOVEDIR))

	points = []point{
		{"begin", []uint32{unix.SYS_OPENAT2}, nil},
		{"write the pod's file", []uint32{unix.SYS_FCHMOD}, nil},
		{"rename the pod's file", []uint32{unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2}, nil},
		{"make a folder", []uint32{unix.SYS_MKDIRAT}, nil},
		{"open the folder of the socket to all", []uint32{unix.SYS_FCHMODAT}, nil},
		{"copy the mount", []uint32{unix.SYS_OPEN_TREE}, nil},
		{"set the mount", []uint32{unix.SYS_MOUNT_SETATTR}, nil},
		{"mount", []uint32{unix.SYS_MOVE_MOUNT}, nil},
		{"unmount", []uint32{unix.SYS_UMOUNT2}, nil},
		{"remove the folder", []uint32{unix.SYS_UNLINKAT}, removeDir},
		{"look for other volumes", []uint32{unix.SYS_GETDENTS64}, nil},
		{"remove the pod's file", []uint32{unix.SYS_UNLINKAT}, noFlags},
	}
)

// arm has the kernel kill this process when it comes to the point, from now on.
func (p point) arm() error {
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const number, thirdArgument = 0, 16 + 2*8 // of struct seccomp_data; the low half on little-endian machines
	var code []unix.SockFilter
	for _, call := range p.calls {
		code = append(code, unix.SockFilter{Code: load, K: number})
		if p.flags == nil {
			code = append(code, unix.SockFilter{Code: equal, K: call, Jf: 1})
		} else {
			code = append(code,
				unix.SockFilter{Code: equal, K: call, Jf: 3},
				unix.SockFilter{Code: load, K: thirdArgument},
				unix.SockFilter{Code: equal, K: *p.flags, Jf: 1})
		}
		code = append(code, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS})
	}
	code = append(code, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
