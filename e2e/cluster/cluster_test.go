// Package cluster has the scripts of the local cluster, for `make e2e CLUSTER=local`. Its tests
// need no cluster.
package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 5 * time.Minute // for all that must happen, however busy the machine is

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// needsNamespaces skips a test where namespaces cannot be made.
func needsNamespaces(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "./apart", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces of our own: %v: %s", err, out)
	}
}

// aSleep is a length of sleep by which one process is known.
func aSleep() string { return fmt.Sprintf("86400.%d%d", os.Getpid(), time.Now().UnixNano()) }

// sleeps tells whether there is a process that sleeps so long.
func sleeps(t *testing.T, length string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool {
		text, _ := os.ReadFile(f) // it may have ended
		return string(text) == "sleep\x00"+length+"\x00"
	})
}

func status(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// What a command leaves behind ends with it: processes in sessions of their own, and mounts. Its
// network is not ours.
func TestApartLeavesNothing(t *testing.T) {
	needsNamespaces(t)
	dir, sleep := t.TempDir(), aSleep()
	script := `set -e
mount -t tmpfs none "$1" && touch "$1/file"
setsid sleep "$2" >/dev/null 2>&1 &
readlink /proc/self/ns/net
exit 7`
	out, err := exec.CommandContext(t.Context(), "./apart", "sh", "-c", script, "sh", dir, sleep).CombinedOutput()
	if status(err) != 7 {
		t.Errorf("status: %v: %s", err, out)
	}
	if sleeps(t, sleep) {
		t.Error("a process goes on")
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("the mount is here: %v %v", files, err)
	}
	if ours, err := os.Readlink("/proc/self/ns/net"); err != nil || !strings.HasPrefix(string(out), "net:[") || strings.HasPrefix(string(out), ours) {
		t.Errorf("its network is %s, ours %s: %v", out, ours, err)
	}
}

// Nor does anything outlive a caller that is killed.
func TestApartEndsWithItsCaller(t *testing.T) {
	needsNamespaces(t)
	sleep := aSleep()
	caller := exec.CommandContext(t.Context(), "bash", "-c", `./apart sh -c 'setsid sleep "$1" & wait' sh "$1"; echo "it went on"`, "bash", sleep)
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it sleeps", func() bool { return sleeps(t, sleep) })
	if err := caller.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = caller.Wait() // it was killed
	eventually(t, "nothing sleeps", func() bool { return !sleeps(t, sleep) })
}

// e2e is the script with a PATH in which these programs come first.
func e2e(t *testing.T, programs map[string]string, env ...string) *exec.Cmd {
	t.Helper()
	bin := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/bash\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "../../scripts/e2e")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CACHE="+t.TempDir(), "LOAD=", "CLUSTER=", "KUBECONFIG=")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// Without a cluster the script says what to set.
func TestWithoutCluster(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"CLUSTER=", "set KUBECONFIG to a cluster for tests, or CLUSTER=local"},
		{"CLUSTER=kind", `CLUSTER is "kind": must be local, or empty`},
	} {
		out, err := e2e(t, nil, c.env).CombinedOutput()
		if status(err) != 1 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s", c.env, err, out)
		}
	}
}

// Two runs would take away each other's cluster.
func TestOneRunAtATime(t *testing.T) {
	cache := t.TempDir()
	other, err := os.Create(filepath.Join(cache, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	out, err := e2e(t, nil, "KUBECONFIG=/dev/null", "CACHE="+cache).CombinedOutput()
	if want := "another run works in " + cache; status(err) != 1 || !strings.Contains(string(out), want) {
		t.Errorf("not refused with %q: %v: %s", want, err, out)
	}
}

// Who interrupts the tests finds nothing of theirs in the cluster, wherever they were.
func TestInterrupted(t *testing.T) {
	version, err := exec.CommandContext(t.Context(), "go", "-C", "../../tools/helm", "list", "-m", "-f", "{{.Version}}", "helm.sh/helm/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, sent := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sent.String(), func(t *testing.T) {
			called, sleep := filepath.Join(t.TempDir(), "called"), aSleep()
			programs := map[string]string{
				"helm": `[ "$1" != version ] || { echo "` + strings.TrimSpace(string(version)) + `"; exit; }
echo "helm $*" >>"$CALLED"`,
				"kubectl": `echo "kubectl $*" >>"$CALLED"
case $* in
"get nodes"*) echo '{"items": [{"metadata": {"name": "one"}}]}' ;;
wait*) trap "" INT && exec sleep ` + sleep + ` ;; # it does not end by itself
esac`,
			}
			cmd := e2e(t, programs, "KUBECONFIG=/dev/null", "CALLED="+called)
			said, err := os.Create(filepath.Join(t.TempDir(), "said"))
			if err != nil {
				t.Fatal(err)
			}
			defer said.Close()
			cmd.Stdout, cmd.Stderr = said, said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			calls := func() string {
				text, _ := os.ReadFile(called) // there may be none yet
				return string(text)
			}
			eventually(t, "the tests wait for a pod", func() bool { return sleeps(t, sleep) })
			before := calls()
			if err := cmd.Process.Signal(sent); err != nil {
				t.Fatal(err)
			}
			select {
			case err = <-done:
			case <-time.After(patience):
				t.Error("it does not end")
				_ = cmd.Process.Signal(sent) // the second one ends it at once
				err = <-done
			}
			text, _ := os.ReadFile(said.Name())
			if status(err) != 128+int(sent) {
				t.Errorf("status %v", err)
			}
			after := strings.TrimPrefix(calls(), before)
			for _, want := range []string{"helm --namespace locksidecar-e2e-system uninstall locksidecar ", "kubectl delete namespace --ignore-not-found locksidecar-e2e-system "} {
				if strings.Count(after, want) != 1 {
					t.Errorf("not once %q in:\n%s\nIt said:\n%s", want, after, text)
				}
			}
			if strings.Contains(after, " create ") || strings.Contains(after, " wait ") {
				t.Errorf("it went on after the signal:\n%s", after)
			}
			if sleeps(t, sleep) {
				t.Error("a process of its goes on")
			}
		})
	}
}
