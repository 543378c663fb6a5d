package disttest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is for everything that must happen, however busy the machine is: also for what is downloaded.
const patience = 10 * time.Minute

// repository is the root of the sources.
const repository = "../../.."

var (
	dist    = flag.String("dist", "", "the folder that `make release` has made")
	version string // of what is in dist
	program string // the sidecar's program, from its archive
)

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "locksidecar-dist-test-")
	if err == nil {
		err = unpackProgram(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func unpackProgram(dir string) error {
	if *dist == "" {
		return errors.New("-dist is missing: run `make release-test`")
	}
	text, err := os.ReadFile(filepath.Join(repository, "VERSION"))
	if err != nil {
		return err
	}
	version = strings.TrimSpace(string(text))
	name := fmt.Sprintf("locksidecar_%s_linux_%s", version, runtime.GOARCH)
	out, err := exec.Command("tar", "-C", dir, "-xzf", filepath.Join(*dist, name+".tar.gz")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unpack the program: %w\n%s", err, out)
	}
	program = filepath.Join(dir, name, "locksidecar")
	return nil
}

// artifact is the path of something in dist.
func artifact(t *testing.T, format string) string {
	t.Helper()
	name := filepath.Join(*dist, fmt.Sprintf(format, version))
	if _, err := os.Stat(name); err != nil {
		t.Fatal(err)
	}
	return name
}

// run runs a program to its end, and fails the test where it fails.
func run(t *testing.T, dir string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// files writes files into a new folder, an empty project.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// output collects what a program prints, and can be read meanwhile.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a program that runs beside the test, which kills it in the end.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *output
	exited chan struct{}
}

func start(t *testing.T, dir string, env []string, argv ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(context.Background(), argv[0], argv[1:]...), out: &output{}, exited: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.WaitDelay = 5 * time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the status is looked at by whoever waits
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		<-p.exited
		if t.Failed() {
			t.Logf("%s\n%s", strings.Join(argv, " "), p.out)
		}
	})
	return p
}

// says waits for a line that begins so, and gives its rest.
func (p *process) says(t *testing.T, prefix string) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		lines := bufio.NewScanner(strings.NewReader(p.out.String()))
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return strings.TrimSpace(rest)
			}
		}
		select {
		case <-p.exited:
			t.Fatalf("%v ended and did not say %q\n%s", p.cmd.Args, prefix, p.out)
		default:
		}
	}
	t.Fatalf("%v did not say %q\n%s", p.cmd.Args, prefix, p.out)
	return ""
}

// ends waits for the end.
func (p *process) ends(t *testing.T) {
	t.Helper()
	select {
	case <-p.exited:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%v ended with status %d\n%s", p.cmd.Args, code, p.out)
		}
	case <-time.After(patience):
		t.Fatalf("%v has not ended\n%s", p.cmd.Args, p.out)
	}
}

// sidecar starts the released program, and returns its socket.
func sidecar(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	start(t, dir, nil, program, "serve", "--socket", socket).says(t, "Take a lock")
	return socket
}

// holder is who holds a resource.
type holder struct {
	Fence string `json:"fence"`
}

func holders(t *testing.T, socket, resource string) []holder {
	t.Helper()
	var lock struct {
		Holders []holder `json:"holders"`
	}
	text := run(t, "", program, "get", "--socket", socket, "-o", "json", resource)
	if err := json.Unmarshal([]byte(text), &lock); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return lock.Holders
}

// holds runs a program of a project. It must take the lock "orders/42", print "held" and the
// fence, and release when its input ends.
func holds(t *testing.T, dir string, argv ...string) {
	t.Helper()
	const resource = "orders/42"
	socket := sidecar(t)
	p := start(t, dir, []string{"LOCKSIDECAR_SOCKET=" + socket}, argv...)
	fence := p.says(t, "held ")
	if got := holders(t, socket, resource); len(got) != 1 || got[0].Fence != fence {
		t.Errorf("the program says that it holds fence %s; the sidecar says %v", fence, got)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	p.ends(t)
	if got := holders(t, socket, resource); len(got) != 0 {
		t.Errorf("after its end the lock is held: %v", got)
	}
}
