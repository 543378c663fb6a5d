package csi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/locksidecar/locksidecar/localapi/podid"
)

// The tests are the node and its kubelet, in a mount namespace of their own. The driver is a
// process in another one, with shared mounts, as in a container. Both are this program again.
const (
	roleEnv    = "LOCKSIDECAR_CSI_TEST"
	roleNode   = "node"
	roleDriver = "driver"
	dirEnv     = "LOCKSIDECAR_CSI_TEST_DIR"
)

const (
	driverIs = "node.locksidecar.io"
	nodeIs   = "node-1"
	agentIs  = 1234 // its user
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case roleDriver:
		os.Exit(beDriver())
	case roleNode:
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "make mounts private:", err)
			os.Exit(1)
		}
	default:
		if code, ok := again(); ok {
			os.Exit(code)
		}
	}
	goleak.VerifyTestMain(m)
}

// again runs the tests in a mount namespace, where one can be made.
func again() (code int, ok bool) {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+roleNode)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, false // not root
	}
	return cmd.ProcessState.ExitCode(), true
}

// beDriver is the driver's process. A line on stdin, the number of a point, has the kernel kill it there.
func beDriver() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			for _, p := range points {
				if p.name == lines.Text() {
					fmt.Println(p.arm())
				}
			}
		}
	}()
	if err := Run(ctx, options(os.Getenv(dirEnv))); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func options(dir string) Options {
	return Options{
		Name:    driverIs,
		Version: "v1",
		Node:    nodeIs,
		Kubelet: filepath.Join(dir, "k"),
		Folder:  filepath.Join(dir, "n"),
		Owner:   agentIs,
		Logger:  hclog.New(&hclog.LoggerOptions{Output: os.Stderr}),
	}
}

// node is a node with a kubelet.
type node struct {
	t    *testing.T
	dir  string
	o    Options
	pods podid.Folder
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getenv(roleEnv) != roleNode {
		t.Skip("needs root: the driver mounts")
	}
	dir, err := os.MkdirTemp("", "csi") // a short path: there will be a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// Systemd makes the mounts of a node shared.
	for _, how := range []struct {
		source string
		flags  uintptr
	}{{dir, unix.MS_BIND}, {"", unix.MS_SHARED}} {
		if err := unix.Mount(how.source, dir, "", how.flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n := &node{t: t, dir: dir, o: options(dir)}
	n.pods = podid.Folder(filepath.Join(n.o.Folder, podsFolder))
	for _, folder := range []string{podsOfKubelet, registry} {
		if err := os.MkdirAll(filepath.Join(n.o.Kubelet, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// process is a driver that runs.
type process struct {
	n     *node
	cmd   *exec.Cmd
	stdin io.Writer
	said  *bufio.Reader
	log   *log
	conn  *grpc.ClientConn
	spec.NodeClient
}

// log is what a driver has logged so far.
type log struct {
	mu sync.Mutex
	b  strings.Builder
	to io.Writer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	return l.to.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// begin starts a driver.
func (n *node) begin() *process {
	n.t.Helper()
	// Not the context of the test: that ends before clean-up.
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+roleDriver, dirEnv+"="+n.dir)
	said := &log{to: n.t.Output()}
	cmd.Stderr = said
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	p := &process{n: n, cmd: cmd, stdin: stdin, said: bufio.NewReader(stdout), log: said}
	n.t.Cleanup(p.kill)
	return p
}

// start starts a driver, and registers it as the kubelet does.
func (n *node) start() *process {
	n.t.Helper()
	p := n.begin()
	p.register()
	return p
}

const patience = 2 * time.Minute // for all that must happen, however busy the machine is

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in vain: %s: %v", what, err)
		}
	}
}

// plugins are the sockets that a kubelet sees.
func (n *node) plugins() (paths []string) {
	n.t.Helper()
	all, err := os.ReadDir(filepath.Join(n.o.Kubelet, registry))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range all {
		if !strings.HasPrefix(f.Name(), ".") && f.Type() == os.ModeSocket {
			paths = append(paths, filepath.Join(n.o.Kubelet, registry, f.Name()))
		}
	}
	return paths
}

// register does what a kubelet does with a plugin (pluginmanager's operation executor and the
// registration of CSI drivers).
func (p *process) register() {
	t := p.n.t
	t.Helper()
	eventually(t, "the driver registers", func() error {
		paths := p.n.plugins()
		if len(paths) != 1 {
			return fmt.Errorf("plugins: %v", paths)
		}
		c, err := dial(paths[0])
		if err != nil {
			return err
		}
		plugin := registration.NewRegistrationClient(c)
		info, err := plugin.GetInfo(t.Context(), &registration.InfoRequest{})
		if err != nil {
			_ = c.Close()
			return err // the socket of one that was killed
		}
		if info.GetType() != registration.CSIPlugin || info.GetName() != driverIs || info.GetEndpoint() != "" ||
			len(info.GetSupportedVersions()) != 1 || info.GetSupportedVersions()[0] != "1.0.0" {
			t.Fatalf("it says of itself %v", info)
		}
		p.conn, p.NodeClient = c, spec.NewNodeClient(c)
		got, err := p.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
		if err != nil || got.GetNodeId() != nodeIs {
			t.Fatalf("the node: %v, %v", got, err)
		}
		if _, err := plugin.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
			t.Fatal(err)
		}
		return nil
	})
}

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}))
}

// hangUp closes the connection of the kubelet.
func (p *process) hangUp() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	p.hangUp()
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// arm has the kernel kill the process at a point.
func (p *process) arm(name string) {
	p.n.t.Helper()
	if _, err := io.WriteString(p.stdin, name+"\n"); err != nil {
		p.n.t.Fatal(err)
	}
	if said, err := p.said.ReadString('\n'); err != nil || said != "<nil>\n" {
		p.n.t.Fatalf("%s: %q, %v", name, said, err)
	}
}

// pod is one of the kubelet's.
type pod struct{ uid, namespace, name, account string }

var (
	one     = pod{"8f1c0a52-3c1b-4a6e-9d7e-0b1a2c3d4e5f", "shop", "orders-7d4b9", "orders"}
	another = pod{"11111111-2222-4333-8444-555555555555", "bank", "ledger-0", "default"}
)

// folder is where the kubelet has a volume. It is there before the kubelet asks.
func (n *node) folder(p pod, volume string) string {
	return filepath.Join(n.o.Kubelet, podsOfKubelet, p.uid, ofPod, volume)
}

func (n *node) target(p pod, volume string) string {
	return filepath.Join(n.folder(p, volume), mountPoint)
}

// request is what the kubelet asks for.
func (n *node) request(p pod, volume string) *spec.NodePublishVolumeRequest {
	n.t.Helper()
	if err := os.MkdirAll(n.folder(p, volume), 0o750); err != nil {
		n.t.Fatal(err)
	}
	return &spec.NodePublishVolumeRequest{
		VolumeId:   "csi-4c01db0b339c8a1e",
		TargetPath: n.target(p, volume),
		Readonly:   true,
		VolumeCapability: &spec.VolumeCapability{
			AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		VolumeContext: map[string]string{
			podUID: p.uid, podNamespace: p.namespace, podName: p.name, serviceAccount: p.account, ephemeral: "true",
			ofKubelet + "serviceAccount.tokens": "{}",
		},
	}
}

func (p *process) publish(of pod, volume string) error {
	_, err := p.NodePublishVolume(p.n.t.Context(), p.n.request(of, volume))
	return err
}

func (p *process) unpublish(of pod, volume string) error {
	_, err := p.NodeUnpublishVolume(p.n.t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "csi-4c01db0b339c8a1e", TargetPath: p.n.target(of, volume)})
	return err
}

// must fails the test.
func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// mounts counts the mounts of the node below a folder, and gives the lines of mountinfo.
func (n *node) mounts(below string) (lines []string) {
	n.t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; at == below || strings.HasPrefix(at, below+"/") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// want checks what is mounted below the kubelet's folder, and what is said of pods.
func (n *node) want(when string, mounts int, pods ...pod) {
	n.t.Helper()
	if lines := n.mounts(n.o.Kubelet); len(lines) != mounts {
		n.t.Errorf("%s: %d mounts, not %d:\n%s", when, len(lines), mounts, strings.Join(lines, "\n"))
	}
	files, err := os.ReadDir(string(n.pods))
	if err != nil || len(files) != len(pods) {
		n.t.Errorf("%s: files %v, not %d; %v", when, files, len(pods), err)
	}
	for _, p := range pods {
		got, err := n.pods.Principal(podid.Place{Pod: p.uid, Container: "c"})
		want := podid.Principal{Namespace: p.namespace, ServiceAccount: p.account, Pod: p.name, Container: "c"}
		if err != nil || got != want {
			n.t.Errorf("%s: %+v, %v", when, got, err)
		}
	}
	folders, err := os.ReadDir(filepath.Join(n.o.Folder, socketsFolder))
	n.must(err)
	for _, f := range folders {
		if !slices.ContainsFunc(pods, func(p pod) bool { return p.uid == f.Name() }) {
			n.t.Errorf("%s: there is a folder %s for the socket of no pod", when, f.Name())
		}
	}
}

// socket is the folder that is mounted into a pod.
func (n *node) socket(of pod) string { return filepath.Join(n.o.Folder, socketsFolder, of.uid) }

// answers listens in the folder of a pod as the agent will, and says a word to whoever connects.
func (n *node) answers(of pod, word string) {
	n.t.Helper()
	folder := n.socket(of)
	n.must(os.MkdirAll(folder, 0o755))
	path := filepath.Join(folder, "locksidecar.sock")
	l, err := net.Listen("unix", path+".new")
	n.must(err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	n.must(os.Rename(path+".new", path))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, word)
			_ = c.Close()
		}
	}()
	n.t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}

// hears connects below a folder and gives the word. The path can be longer than that of a socket.
func (n *node) hears(folder string) string {
	n.t.Helper()
	d, err := openFolder(folder)
	n.must(err)
	defer d.close()
	c, err := net.Dial("unix", d.path()+"/locksidecar.sock")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	word, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(word)
}
