package testengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	mobycontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/exec"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

// container runs servers in one Docker container. The container itself only
// waits; servers are started in it one by one, so that each of them can be
// frozen and killed alone. Its ports are published under the same numbers, so
// that a server tells the same address to clients outside and to its peers
// inside.
type container struct {
	image string
	c     *testcontainers.DockerContainer
}

// containerLife ends a container whose test process had no time to end it.
const containerLife = time.Hour

// containerDir is the folder of the servers in the container.
const containerDir = "/testengine"

// dockerSettings: our containers end by themselves, so the library's own
// reaper, one more image to pull, is not needed; and published ports are on the
// loopback, while the library would take the gateway's address when it runs in
// a container itself.
var dockerSettings = sync.OnceFunc(func() {
	for k, v := range map[string]string{
		"TESTCONTAINERS_RYUK_DISABLED": "true",
		"TESTCONTAINERS_HOST_OVERRIDE": loopback,
	} {
		if _, set := os.LookupEnv(k); !set {
			_ = os.Setenv(k, v) // fails only on malformed names
		}
	}
	tclog.SetDefault(tclog.NewNoopLogger())
})

// dockerHealth says why Docker cannot be used; nil: it can.
func dockerHealth(ctx context.Context) (err error) {
	dockerSettings()
	defer func() {
		if r := recover(); r != nil { // the library panics where it finds no socket
			err = fmt.Errorf("ask Docker: %v", r)
		}
	}()
	p, err := testcontainers.ProviderDocker.GetProvider()
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	if err := p.Health(ctx); err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	return nil
}

func newContainer(ctx context.Context, image string, ports []int) (machine, error) {
	var exposed []string
	bindings := network.PortMap{}
	for _, p := range ports {
		name := strconv.Itoa(p) + "/tcp"
		exposed = append(exposed, name)
		bindings[network.MustParsePort(name)] = []network.PortBinding{{
			HostIP: netip.MustParseAddr(loopback), HostPort: strconv.Itoa(p),
		}}
	}
	// A shell that waits in short steps also collects the children of ended
	// servers, which a single sleep as the first process would not.
	life := fmt.Sprintf("mkdir -p %s; i=0; while [ $i -lt %d ]; do sleep 1; i=$((i+1)); done",
		containerDir, int(containerLife/time.Second))
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithEntrypoint("sh", "-c", life),
		testcontainers.WithExposedPorts(exposed...),
		testcontainers.WithHostConfigModifier(func(h *mobycontainer.HostConfig) {
			h.PortBindings = bindings
			h.AutoRemove = true
		}),
	)
	m := &container{image: image, c: c}
	if err != nil {
		for _, sign := range []string{"port is already allocated", "address already in use"} {
			if strings.Contains(err.Error(), sign) {
				err = fmt.Errorf("%w: %w", errPortTaken, err)
			}
		}
		if c != nil {
			err = errors.Join(err, m.close())
		}
		return nil, fmt.Errorf("start a container of %s: %w", image, err)
	}
	return m, nil
}

func (m *container) start(ctx context.Context, dir string, argv ...string) (process, error) {
	var words []string
	for _, a := range argv {
		words = append(words, quote(a))
	}
	out, err := m.sh(ctx, fmt.Sprintf("mkdir -p %[1]s && cd %[1]s && { %[2]s >>log 2>&1 </dev/null & echo $!; }",
		quote(dir), strings.Join(words, " ")))
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return nil, fmt.Errorf("start %s in the container: no process id in %q", argv[0], out)
	}
	return &contained{m: m, number: pid}, nil
}

func (m *container) sh(ctx context.Context, script string) (string, error) {
	code, r, err := m.c.Exec(ctx, []string{"sh", "-c", "cd " + containerDir + " && { " + script + "\n}"}, exec.Multiplexed())
	if err != nil {
		return "", fmt.Errorf("run %q in the container: %w", script, err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return "", fmt.Errorf("read what %q printed: %w", script, err)
	}
	if code != 0 {
		return "", fmt.Errorf("run %q in the container: status %d: %s", script, code, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func (m *container) bring(ctx context.Context, file string) (string, error) {
	path := containerDir + "/" + filepath.Base(file)
	if err := m.c.CopyFileToContainer(ctx, file, path, 0o755); err != nil {
		return "", fmt.Errorf("copy %s into the container: %w", file, err)
	}
	return path, nil
}

func (m *container) cache() string  { return containerDir + "/cache" }
func (m *container) bind() string   { return "0.0.0.0" }
func (m *container) String() string { return "in a container of " + m.image }

func (m *container) close() error {
	if err := testcontainers.TerminateContainer(m.c, testcontainers.StopTimeout(0)); err != nil {
		return fmt.Errorf("end a container of %s: %w", m.image, err)
	}
	return nil
}

// contained is a process in a container.
type contained struct {
	m      *container
	number int
}

func (p *contained) pid() int { return p.number }

func (p *contained) signal(ctx context.Context, s syscall.Signal) error {
	// Signals by number: their names differ among shells. Failure means that
	// the process has ended, for root may signal them all.
	_, err := p.m.sh(ctx, fmt.Sprintf("kill -%d %d 2>/dev/null || :", int(s), p.number))
	return err
}

func (p *contained) kill(ctx context.Context) error {
	_, err := p.m.sh(ctx, fmt.Sprintf("kill -9 %[1]d 2>/dev/null; while kill -0 %[1]d 2>/dev/null; do sleep 0.02; done", p.number))
	return err
}

func (p *contained) alive(ctx context.Context) (bool, error) {
	out, err := p.m.sh(ctx, fmt.Sprintf("kill -0 %d 2>/dev/null && echo yes || :", p.number))
	return strings.TrimSpace(out) == "yes", err
}
