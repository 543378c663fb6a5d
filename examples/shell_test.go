package examples

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// withLock starts shell/with-lock.
func withLock(t *testing.T, s *sidecar, args ...string) *program {
	t.Helper()
	return launch(t, s.env(), "shell/with-lock", args...)
}

func TestWithLock(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.hold("taken")
	nowhere := &sidecar{socket: "/nowhere/s"}
	tests := []struct {
		name       string
		at         *sidecar
		args       []string
		stdin      string
		code       int
		out        string // all of it
		complaints string // part of it
	}{
		{"a command", s, []string{"a", "0", "echo", "x y"}, "", 0, "x y\n", ""},
		{"its status", s, []string{"b", "0", "sh", "-c", "exit 7"}, "", 7, "", ""},
		{"its input", s, []string{"c", "0.5", "cat"}, "text", 0, "text", ""},
		{"its environment", s, []string{"d", "0", "sh", "-c", `[ "$LOCKSIDECAR_FENCE" -gt 1000 ] && echo "$LOCKSIDECAR_RESOURCE"`}, "", 0, "d\n", ""},
		{"a name with signs", s, []string{`"ü\`, "forever", "sh", "-c", `echo "$LOCKSIDECAR_RESOURCE"`}, "", 0, "\"ü\\\n", ""},
		{"held by another", s, []string{"taken", "0", "echo"}, "", 75, "", "not run: LOCK_HELD: the lock on \"taken\" is not free"},
		{"waited in vain", s, []string{"taken", "0.1", "echo"}, "", 75, "", "WAIT_TIMEOUT"},
		{"a bad name", s, []string{"", "0", "echo"}, "", 125, "", "resource must not be empty"},
		{"no sidecar", nowhere, []string{"a", "0", "echo"}, "", 75, "", "locksidecar serve --socket /nowhere/s"},
		{"no command", s, []string{"a", "0"}, "", 125, "", "usage"},
		{"no time", s, []string{"a", "soon", "echo"}, "", 125, "", "usage"},
		{"a command that is not there", s, []string{"e", "0", "/not/there"}, "", 127, "", "/not/there"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "shell/with-lock", tt.args...)
			cmd.Env, cmd.Stdin = environment(tt.at.env()...), strings.NewReader(tt.stdin)
			p := launchCmd(t, cmd)
			if code := p.wait(); code != tt.code || p.out.String() != tt.out || !strings.Contains(p.err.String(), tt.complaints) {
				t.Errorf("status %d, out %q, err %q; want %d, %q, %q", code, &p.out, &p.err, tt.code, tt.out, tt.complaints)
			}
		})
	}
	eventually(t, "nothing is left held", func() bool {
		for l, err := range s.client.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if l.GetResource() != "taken" {
				return false
			}
		}
		return true
	})
}

// Lists show which script has the lock: the sidecar itself sees only its curl.
func TestWithLockIsTheOwner(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := withLock(t, s, "a", "0", "sh", "-c", "echo works; exec sleep 60")
	p.says("works")
	holders := s.lock("a").GetHolders()
	if want := fmt.Sprintf("pid %d", p.cmd.Process.Pid); len(holders) != 1 || holders[0].GetOwner() != want {
		t.Errorf("holders = %v, want one with the owner %q", holders, want)
	}
}

// Many processes at two sidecars add to one file.
func TestWithLockExcludes(t *testing.T) {
	t.Parallel()
	one, other := pair(t)
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const processes, times = 6, 10
	var all []*program
	for i := range processes {
		side := []*sidecar{one, other}[i%2]
		all = append(all, launch(t, append(side.env(), "F="+file), "sh", "-c", fmt.Sprintf(
			`set -e; for i in $(seq %d); do shell/with-lock counter 60 sh -c 'n=$(cat "$F"); echo $((n+1)) >"$F"'; done`, times)))
	}
	for _, p := range all {
		if code := p.wait(); code != 0 {
			t.Fatalf("status %d, stderr %q", code, &p.err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(text)); got != strconv.Itoa(processes*times) {
		t.Errorf("they counted to %s, want %d", got, processes*times)
	}
}

// works is a command that tells when it works, and that begins a child which
// does the same. It starts no program for it, which would be two each time: instead of sleep, bash reads from a pipe
// into which nobody writes.
const works = `exec 3<> <(:); work() { while :; do echo "${EPOCHREALTIME/[.,]/}000" >>"$1"; read -rt 0.01 -u 3; done; }
work "$0" & work "$0"`

// successor is one that tells when it began.
const successor = `date +%s%N; sleep 0.1`

// afterwards checks that the successor began when the work had ended.
func afterwards(t *testing.T, next *program, log string) {
	t.Helper()
	if code := next.wait(); code != 0 {
		t.Fatalf("the successor ended with %d: %s", code, &next.err)
	}
	began, err := strconv.ParseInt(strings.TrimSpace(next.out.String()), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(text))
	last, err := strconv.ParseInt(slices.Max(lines), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if last >= began {
		t.Errorf("work under the lost lock went on for %s beside its next holder", time.Duration(last-began))
	}
	t.Logf("the work ended %s before the next holder began", time.Duration(began-last))
}

// The lock is lost in all ways there are. Wherever the sidecar or the store still
// keeps others out, the command is dead before anybody else gets it.
func TestWithLockIsLost(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		do   func(t *testing.T, s *sidecar, script *program)
		want string
		free bool // the lock is free at once, and the command is ended a little later
	}{
		{"forced", func(t *testing.T, s *sidecar, _ *program) {
			if _, err := s.client.ForceRelease(t.Context(), "a", "", 2*time.Second); err != nil {
				t.Fatal(err)
			}
		}, "an administrator forced its release", false},
		{"sidecar killed", func(_ *testing.T, s *sidecar, _ *program) { s.signal(syscall.SIGKILL) }, "the connection to the sidecar ended", false},
		{"sidecar frozen", func(_ *testing.T, s *sidecar, _ *program) { s.signal(syscall.SIGSTOP) }, "the sidecar was not heard of in time", false},
		{"curl killed", func(t *testing.T, s *sidecar, _ *program) {
			if err := syscall.Kill(int(s.lock("a").GetHolders()[0].GetPid()), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}, "the connection to the sidecar ended", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, other := pair(t, "--ttl", "4s")
			log := filepath.Join(t.TempDir(), "log")
			script := withLock(t, s, "a", "0", "bash", "-c", works, log)
			eventually(t, "it works", func() bool { st, err := os.Stat(log); return err == nil && st.Size() > 0 })
			next := withLock(t, other, "a", "20", "sh", "-c", successor)
			other.waiters("a", 1)
			tt.do(t, s, script)
			if code := script.wait(); code != 76 || !strings.Contains(script.err.String(), tt.want) {
				t.Errorf("status %d, %q; want 76, %q", code, &script.err, tt.want)
			}
			if tt.free {
				next.wait()
			} else {
				afterwards(t, next, log)
			}
		})
	}
}

// detached takes a lock and gives its handle.
func (s *sidecar) detached(resource string, ttl time.Duration) *pb.DetachedHold {
	s.t.Helper()
	session, err := s.client.OpenSession(s.t.Context(), client.SessionOptions{Name: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	l, err := session.Acquire(s.t.Context(), resource, client.AcquireOptions{Detachable: true})
	if err != nil {
		s.t.Fatal(err)
	}
	d, err := l.Detach(s.t.Context(), ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// attached starts shell/with-lock with a handle.
func attached(t *testing.T, s *sidecar, d *pb.DetachedHold, args ...string) *program {
	t.Helper()
	return launch(t, append(s.env(), "LOCKSIDECAR_HANDLE="+d.GetHandle()), "shell/with-lock", append([]string{"--"}, args...)...)
}

func TestWithLockAttaches(t *testing.T) {
	t.Parallel()
	s, other := pair(t)
	name := `e"x\7`
	d := s.detached(name, time.Hour)
	ran := attached(t, other, d, "sh", "-c", `printf '%s %s %s\n' "$LOCKSIDECAR_RESOURCE" "$LOCKSIDECAR_FENCE" "${LOCKSIDECAR_HANDLE-none}"; exit 76`)
	if code, want := ran.wait(), fmt.Sprintf("%s %d none\n", name, d.GetFence()); code != 76 || ran.out.String() != want || ran.err.String() != "" {
		t.Errorf("status %d, out %q, err %q; want 76, %q", code, &ran.out, &ran.err, want)
	}
	if all := s.lock(name).GetHolders(); len(all) != 0 {
		t.Errorf("it is not released: %v", all)
	}
	again := attached(t, s, d, "echo")
	if code := again.wait(); code != 75 || !strings.Contains(again.err.String(), "NOT_HOLDER") || strings.Contains(again.err.String(), d.GetHandle()) {
		t.Errorf("status %d, %q", code, &again.err)
	}
	none := launch(t, s.env(), "shell/with-lock", "--", "echo")
	if code := none.wait(); code != 125 || !strings.Contains(none.err.String(), "LOCKSIDECAR_HANDLE") {
		t.Errorf("status %d, %q", code, &none.err)
	}
}

// Who is killed, or has lost the lock, leaves it to the others who have the handle.
func TestWithLockAttachedElsewhere(t *testing.T) {
	t.Parallel()
	s, other := pair(t)
	d := s.detached("a", time.Hour)
	may := filepath.Join(t.TempDir(), "end")
	killed := attached(t, s, d, "sh", "-c", `echo works; until [ -e "$0" ]; do sleep 0.05; done`, may)
	killed.says("works")
	killed.signal(syscall.SIGKILL)
	if err := os.WriteFile(may, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is detached again", func() bool { all := s.lock("a").GetHolders(); return len(all) == 1 && all[0].GetDetached() })

	first := attached(t, s, d, "sh", "-c", "echo works; exec sleep 600")
	first.says("works")
	second := attached(t, other, d, "sh", "-c", "echo works; exec sleep 600")
	second.says("works")
	if code := first.wait(); code != 76 || !strings.Contains(first.err.String(), `the lock on "a" is lost`) {
		t.Errorf("status %d, %q", code, &first.err)
	}
	if all := other.lock("a").GetHolders(); len(all) != 1 || all[0].GetDetached() || all[0].GetFence() != d.GetFence() {
		t.Errorf("the second has it no more: %v", all)
	}
	second.signal(syscall.SIGTERM)
	second.wait()
	if all := s.lock("a").GetHolders(); len(all) != 0 {
		t.Errorf("it is not released: %v", all)
	}

	late := attached(t, s, s.detached("b", 15*time.Second), "sleep", "600")
	if code := late.wait(); code != 76 || !strings.Contains(late.err.String(), `the lock on "b" is lost`) {
		t.Errorf("status %d, %q", code, &late.err)
	}
}

// The time of a handle is over, and the sidecar does not say so: news of its lease do not prolong it.
func TestWithLockAttachedFrozen(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	frozen := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.HasSuffix(r.URL.Path, "/locks"):
			_, _ = fmt.Fprintln(w, `{"lockId":"l","resource":"a","fence":"7","validFor":"2s","endsIn":"2s","countedAt":"1s"}`)
		case strings.Contains(string(body), "STREAM"):
			_, _ = fmt.Fprintln(w, `{"opened":{"sessionId":"s","leaseMargin":"1s","countedAt":"1s"}}`)
			_, _ = fmt.Fprintln(w, `{"lease":{"validFor":"600s","countedAt":"1s"}}`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case r.Method == http.MethodPost:
			_, _ = fmt.Fprintln(w, `{"sessionId":"ttl","leaseMargin":"1s","countedAt":"1s"}`)
		}
	}))
	frozen.Listener = l
	frozen.Start()
	t.Cleanup(frozen.Close)
	script := attached(t, &sidecar{socket: socket}, &pb.DetachedHold{Handle: "h"}, "sleep", "600")
	if code := script.wait(); code != 76 || !strings.Contains(script.err.String(), "the sidecar was not heard of in time") {
		t.Errorf("status %d, %q", code, &script.err)
	}
}

// kill -9 of the script: the command goes on, and has the lock as long as it does.
func TestWithLockIsKilled(t *testing.T) {
	t.Parallel()
	s := serve(t, "--ttl", "1s")
	log := filepath.Join(t.TempDir(), "log")
	script := withLock(t, s, "a", "0", "bash", "-c", `for i in $(seq 50); do date +%s%N >>"$0"; sleep 0.01; done`, log)
	eventually(t, "it works", func() bool { _, err := os.Stat(log); return err == nil })
	next := withLock(t, s, "a", "20", "sh", "-c", successor)
	s.waiters("a", 1)
	script.signal(syscall.SIGKILL)
	afterwards(t, next, log)
}

func TestWithLockSignals(t *testing.T) {
	t.Parallel()
	s := serve(t)
	script := withLock(t, s, "a", "0", "sh", "-c", `trap 'echo asked to stop; exit 9' TERM; echo works; while :; do sleep 0.05; done`)
	script.says("works")
	waiting := withLock(t, s, "a", "forever", "echo", "never")
	s.waiters("a", 1)
	waiting.signal(syscall.SIGTERM)
	waiting.wait()
	if ended, ok := waiting.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ended.Signaled() || ended.Signal() != syscall.SIGTERM {
		t.Errorf("the one that waited ended with %v", waiting.cmd.ProcessState)
	}
	s.waiters("a", 0)
	script.signal(syscall.SIGTERM)
	if code := script.wait(); code != 9 || !strings.Contains(script.out.String(), "asked to stop") {
		t.Errorf("status %d, %q", code, &script.out)
	}
	for end := time.Now().Add(patience); len(s.lock("a").GetHolders()) != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there are holders after the end")
		}
	}
}

// inPath is a folder with the program in it, and others that print their names.
func inPath(t *testing.T, others ...string) (env string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "locksidecar")); err != nil {
		t.Fatal(err)
	}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shell, err := filepath.Abs("shell")
	if err != nil {
		t.Fatal(err)
	}
	return "PATH=" + strings.Join([]string{dir, shell, os.Getenv("PATH")}, ":")
}

// cron on five nodes, whose clocks differ.
func TestOnce(t *testing.T) {
	t.Parallel()
	one, other := pair(t)
	path := inPath(t, "job")
	var all []*program
	for i := range 5 {
		all = append(all, launch(t, append([]*sidecar{one, other}[i%2].env(), path), "shell/once", "tick", "4", "job"))
		time.Sleep(100 * time.Millisecond) // the job is over before the last of them comes
	}
	var said []string
	for _, p := range all {
		if code := p.wait(); code != 0 || p.err.String() != "" {
			t.Errorf("status %d, %q", code, &p.err)
		}
		said = append(said, strings.Fields(p.out.String())...)
	}
	if diff := cmp.Diff([]string{"job"}, said); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}
}

func TestOnceComplains(t *testing.T) {
	t.Parallel()
	s := serve(t)
	path := inPath(t)
	bad := launch(t, append(s.env(), path), "shell/once", "tick", "0", "sh", "-c", "echo oops >&2; exit 3")
	if code := bad.wait(); code != 3 || bad.err.String() != "oops\n" {
		t.Errorf("status %d, %q", code, &bad.err)
	}
	lost := launch(t, []string{"LOCKSIDECAR_SOCKET=/nowhere/s", path}, "shell/once", "tick", "0", "true")
	if code := lost.wait(); code != 69 || !strings.Contains(lost.err.String(), "no sidecar answers at /nowhere/s") {
		t.Errorf("status %d, %q", code, &lost.err)
	}

	store := testengine.Through(t, testengine.Shared(t, testengine.Redis))
	alone := serve(t, "--store", store.URL()+"?restart-grace=0s", "--ttl", "500ms")
	store.Inject(testengine.Cut)
	noStore := launch(t, append(alone.env(), path), "shell/once", "tick", "0", "true")
	if code := noStore.wait(); code != 69 || noStore.err.String() == "" {
		t.Errorf("without a store: status %d, %q", code, &noStore.err)
	}
}

// With LOCKSIDECAR_STORE "run" has a sidecar of its own, and its log. cron would send that by mail
// at each tick.
func TestOnceWithAStore(t *testing.T) {
	t.Parallel()
	env := []string{"LOCKSIDECAR_STORE=" + redisURL(t), "LOCKSIDECAR_NAMESPACE=" + rand.Text(), "LOCKSIDECAR_LOG_LEVEL=debug", inPath(t)}
	for _, tt := range []struct {
		command string
		code    int
		out     string
		log     bool
	}{
		{"echo done", 0, "done\n", false},
		{"exit 3", 3, "", true},
	} {
		p := launch(t, env, "shell/once", "tick", "0", "sh", "-c", tt.command)
		if code := p.wait(); code != tt.code || p.out.String() != tt.out || (p.err.String() != "") != tt.log {
			t.Errorf("%s: status %d, %q, %q", tt.command, code, &p.out, &p.err)
		}
	}
}

// Each line of the crontab, as cron runs it.
func TestCrontab(t *testing.T) {
	t.Parallel()
	s := serve(t)
	path := inPath(t, "cleanup.sh", "reindex.sh", "report.sh", "backup.sh")
	f, err := os.Open("shell/crontab")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var ran []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") || strings.Contains(fields[0], "=") {
			continue
		}
		command := strings.ReplaceAll(strings.Join(fields[5:], " "), "reports/nightly 60", "reports/nightly 1")
		p := launch(t, append(s.env(), path), "sh", "-c", command)
		if code := p.wait(); code != 0 || p.err.String() != "" {
			t.Errorf("%s: status %d, %q", command, code, &p.err)
		}
		ran = append(ran, strings.TrimSpace(p.out.String()))
	}
	if diff := cmp.Diff([]string{"cleanup.sh", "reindex.sh", "report.sh", "backup.sh"}, ran); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}
}

// The README's one-liner.
func TestCurl(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := launch(t, s.env(), "sh", "-c", `curl -sSN --unix-socket "$LOCKSIDECAR_SOCKET" http://locksidecar/v1/hold -d '{"resource":"a"}'`)
	p.says(`{"granted":`)
	if _, err := s.client.ForceRelease(t.Context(), "a", "", 0); err != nil {
		t.Fatal(err)
	}
	p.says(`{"lost":`)
	if code := p.wait(); code != 0 {
		t.Errorf("status %d: %s", code, &p.err)
	}
}
