package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slice makes cgroups as systemd does, and gives the folder of a unit in a slice of this test's own.
func slice(t *testing.T, units ...string) func(unit string) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var of unix.Statfs_t
		if unix.Statfs(root, &of) != nil || of.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		top, err := os.MkdirTemp(root, "locksidecartest*.slice")
		if err != nil {
			t.Skip("cannot make cgroups: ", err)
		}
		remove := func(folder string) {
			t.Cleanup(func() {
				eventually(t, "the cgroup is empty", func() bool { return !errors.Is(os.Remove(folder), unix.EBUSY) })
			})
		}
		remove(top)
		for _, unit := range units {
			folder := filepath.Join(top, unit)
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			remove(folder)
		}
		return func(unit string) string { return filepath.Join(top, unit) }
	}
	t.Skip("there is no cgroup v2")
	return nil
}

// launchIn starts a program of a user in a cgroup.
func launchIn(t *testing.T, uid uint32, folder, path string, args ...string) *program {
	t.Helper()
	dir, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env, cmd.Dir = cleanEnv(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
	return launchCmd(t, cmd)
}

// TestUnits: with --principal unit, rights and limits are those of systemd units, which one user
// may have many of; lists, the log, metrics and the graph of waits say which.
func TestUnits(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	units := slice(t, "web.service", "batch.service", "ops.service")
	side := serveProgram(t, "--principal", "unit", "--admin-unit", "ops.service", "--max-sessions-per-uid", "2")
	in := func(unit string, args ...string) result {
		p := launchIn(t, 0, units(unit), binary, append([]string{args[0], "--socket", side.socket}, args[1:]...)...)
		p.wait()
		return result{p.out.String(), p.err.String(), p.code}
	}
	run := func(unit, resource string, more ...string) *program {
		return launchIn(t, 0, units(unit), binary, append([]string{"run", "--socket", side.socket, resource, "--"}, more...)...)
	}
	for _, resource := range []string{"a", "b"} {
		run("web.service", resource, "sleep", "600")
	}
	eventually(t, "web has two locks", func() bool {
		return strings.Count(in("ops.service", "list").out, " 0 in unit:web.service ") == 2
	})

	if got := in("web.service", "run", "c", "--", "true"); got.code == 0 || !strings.Contains(got.err, "at most 2 sessions per unit") {
		t.Errorf("a third session of the unit: %+v", got)
	}
	waiter := run("batch.service", "a", "true")
	eventually(t, "batch waits for web", func() bool {
		got := in("ops.service", "deadlocks", "--tree").out
		return strings.Contains(got, " of unit:web.service") && strings.Contains(got, " of unit:batch.service")
	})
	if got := in("ops.service", "get", "a"); !strings.Contains(got.out, ", unit:web.service\n") || !strings.Contains(got.out, " 0 in unit:batch.service ") {
		t.Errorf("get: %+v", got)
	}
	metrics := launchIn(t, 0, units("ops.service"), "curl", "-sS", "--unix-socket", side.socket, "http://locksidecar/metrics")
	metrics.wait()
	for _, want := range []string{
		`locksidecar_principal_sessions{principal="unit:web.service"} 2`,
		`locksidecar_principal_holds{principal="unit:web.service"} 2`,
		`locksidecar_principal_sessions{principal="unit:batch.service"} 1`,
	} {
		if !strings.Contains(metrics.out.String(), want+"\n") {
			t.Errorf("the metrics lack %s: %s", want, metrics.err)
		}
	}

	// Root is no admin where others are named, and who is in no unit is nobody.
	if got := in("web.service", "release", "--force", "a"); got.code != exitFailure || !strings.Contains(got.err, "unit:web.service is not one of this sidecar's admins") {
		t.Errorf("no admin: %+v", got)
	}
	if got := cli(t, "list", "--socket", side.socket); got.code != exitFailure || !strings.Contains(got.err, "is not in a unit of systemd") {
		t.Errorf("in no unit: %+v", got)
	}
	if got := in("ops.service", "release", "--force", "a"); got.code != 0 {
		t.Errorf("an admin: %+v", got)
	}
	if waiter.wait(); waiter.code != 0 {
		t.Errorf("the one who waited ended with %d", waiter.code)
	}
	eventually(t, "the log says who took the lock", func() bool {
		return strings.Contains(side.err.String(), "principal=unit:ops.service")
	})
	if got := in("batch.service", "once", "job", "--", "true"); got.code != 0 {
		t.Errorf("once: %+v", got)
	}
	if got := in("ops.service", "outcomes", "-o", "json"); !strings.Contains(got.out, `"principal":"unit:batch.service"`) && !strings.Contains(got.out, `"principal": "unit:batch.service"`) {
		t.Errorf("outcomes: %+v", got)
	}
}

// TestSpacesOfUnits: with --space unit, the lock of one unit is another one than that of the same
// name of another unit, and only who is given a space by name shares it, or sees all.
func TestSpacesOfUnits(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	units := slice(t, "web.service", "worker.service", "batch.service", "ops.service")
	side := serveProgram(t, "--principal", "unit", "--space", "unit", "--space-of", "worker.service=web.service", "--space-of", "ops.service=/",
		"--admin-unit", "ops.service,batch.service")
	in := func(unit string, args ...string) result {
		p := launchIn(t, 0, units(unit), binary, append([]string{args[0], "--socket", side.socket}, args[1:]...)...)
		p.wait()
		return result{p.out.String(), p.err.String(), p.code}
	}
	run := func(unit string, args ...string) *program {
		return launchIn(t, 0, units(unit), binary, append([]string{"run", "--socket", side.socket}, args...)...)
	}
	web := run("web.service", "a", "--", "sleep", "600")
	eventually(t, "web has the lock", func() bool { return strings.Contains(in("web.service", "list").out, "unit:web.service") })
	if got := in("batch.service", "run", "--wait", "0", "a", "--", "true"); got.code != 0 {
		t.Errorf("the lock of that name in another space: %+v", got)
	}
	if got := in("worker.service", "run", "--wait", "0", "a", "--", "true"); got.code != exitNotGot || !strings.Contains(got.err, `"a" is not free`) {
		t.Errorf("the lock of a space that is shared: %+v", got)
	}
	for _, args := range [][]string{{"list"}, {"list", "web.service/"}, {"get", "web.service/a"}, {"get", "../web.service/a"}, {"deadlocks", "--tree"}, {"outcomes"}} {
		if got := in("batch.service", args...); strings.Contains(got.out, "web.service ") || strings.Contains(got.out, "unit:web") {
			t.Errorf("batch %q: %+v", args, got)
		}
	}
	for _, name := range []string{"a", "web.service/a"} { // an admin, but of its own space
		if got := in("batch.service", "release", "--force", name); !strings.Contains(got.err, "nobody holds") {
			t.Errorf("force %s: %+v", name, got)
		}
	}
	if got := in("ops.service", "get", "web.service/a"); !strings.Contains(got.out, "unit:web.service") {
		t.Errorf("who sees all: %+v", got)
	}
	metrics := func(unit string) string {
		p := launchIn(t, 0, units(unit), "curl", "-sS", "--unix-socket", side.socket, "http://locksidecar/metrics")
		p.wait()
		return p.out.String()
	}
	if got := metrics("batch.service"); strings.Contains(got, "unit:web.service") || !strings.Contains(got, "PERMISSION_DENIED") {
		t.Errorf("metrics: %s", got)
	}
	if got := metrics("ops.service"); !strings.Contains(got, `locksidecar_principal_holds{principal="unit:web.service"} 1`) {
		t.Errorf("metrics for who sees all: %s", got)
	}
	if got := in("ops.service", "release", "--force", "web.service/a"); got.code != 0 {
		t.Errorf("an admin who sees all: %+v", got)
	}
	if web.wait(); web.code == 0 {
		t.Error("the lock was not taken")
	}
}

// TestAllowedUnits: the units that are named may connect, and others may not.
func TestAllowedUnits(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	units := slice(t, "web.service", "batch.service")
	side := serveProgram(t, "--socket-mode", "0666", "--principal", "unit", "--allow-unit", "web.service", "--admin-unit", "ops.service")
	path := forEverybody(t, side)
	in := func(unit string) *program {
		p := launchIn(t, 1001, units(unit), path, "list", "--socket", side.socket)
		p.wait()
		return p
	}
	if p := in("web.service"); p.code != 0 {
		t.Errorf("allowed: status %d, %s", p.code, p.err)
	}
	if p := in("batch.service"); p.code != exitFailure || !strings.Contains(p.err.String(), "uid 1001, gid 1001, unit:batch.service may not use this sidecar") {
		t.Errorf("not allowed: status %d, %s", p.code, p.err)
	}
}

// TestNoPrincipalsOnAnOldKernel: where the kernel does not tell for sure who has connected, a
// sidecar that must know does not start, and any other one does.
func TestNoPrincipalsOnAnOldKernel(t *testing.T) {
	old := func(args ...string) *program {
		socket := filepath.Join(socketDir(t), "s")
		started := make(chan *program)
		go func() {
			defer close(started)
			runtime.LockOSThread() // for ever: the thread ends with its filter
			if err := withoutPeerPidfd(); err != nil {
				t.Error(err)
				return
			}
			started <- launch(t, nil, binary, append([]string{"serve", "--socket", socket}, args...)...)
		}()
		p := <-started
		if p == nil {
			t.FailNow()
		}
		return p
	}
	p := old("--principal", "unit")
	p.wait()
	if p.code != exitUsage || !strings.Contains(p.err.String(), "--principal unit: this kernel does not tell for sure which process is at a socket: that needs Linux 6.5") || strings.Count(p.err.String(), "\n") != 1 {
		t.Errorf("status %d, %s", p.code, p.err)
	}
	p = old()
	eventually(t, "the sidecar serves", func() bool { return strings.Contains(p.out.String(), "curl ") })
}

// withoutPeerPidfd makes the kernel answer this thread, and all that it starts, as one before 6.5 does.
func withoutPeerPidfd() error {
	const nr, option = 0, 16 + 2*8 // where seccomp's data has them, in little endian
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_GETSOCKOPT},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: option},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SO_PEERPIDFD},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOPROTOOPT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := syscall.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}
