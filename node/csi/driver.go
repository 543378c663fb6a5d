package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/locksidecar/locksidecar/localapi/podid"
)

// Keys of log lines.
const (
	keyError     = "error"
	keyNamespace = "namespace"
	keyPod       = "pod"
	keySocket    = "socket"
	keyUID       = "uid"
	keyVolume    = "volume"
)

// What is in the node's folder.
const (
	socketFolder  = "socket"  // the agent's own socket
	socketsFolder = "sockets" // a folder for each pod, which is mounted into it: the agent makes a socket there
	podsFolder    = "pods"    // what was said of pods
	lockFile      = "driver.lock"
)

// registry is where the kubelet looks for plugins, in its folder. Names that begin with a dot
// it does not look at.
const registry = "plugins_registry"

// Options say what the driver is called, and where its folders are.
type Options struct {
	Name    string // of the driver, as in the CSIDriver object
	Version string // of the program
	Node    string // the name of this node
	Kubelet string // the kubelet's folder
	Folder  string // the node's folder, which the driver and the agent share
	Owner   uint32 // user and group of the agent, who makes the sockets
	Logger  hclog.Logger
}

// driverName is what CSI allows.
var driverName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`) })

// maxNode is what CSI allows for a node's name.
const maxNode = 256

// Check says what is wrong with the options.
func (o Options) Check() error {
	switch {
	case !driverName().MatchString(o.Name):
		return fmt.Errorf("%q is no name of a driver: up to 63 small letters, digits, dots and dashes", o.Name)
	case o.Node == "" || len(o.Node) > maxNode:
		return fmt.Errorf("the node's name has %d bytes: must be 1 to %d", len(o.Node), maxNode)
	case !filepath.IsAbs(o.Kubelet) || filepath.Clean(o.Kubelet) != o.Kubelet:
		return fmt.Errorf("the kubelet's folder is %q: must be an absolute path, as the kubelet writes it", o.Kubelet)
	case !filepath.IsAbs(o.Folder):
		return fmt.Errorf("the node's folder is %q: must be an absolute path", o.Folder)
	}
	return nil
}

type driver struct {
	o       Options
	volumes *volumes
}

// lockTry is how often a driver looks whether the one before it has ended.
const lockTry = 200 * time.Millisecond

// Run serves the kubelet until ctx ends. It first forgets pods that are gone. One driver serves a
// node at a time: another one waits for its end.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Check(); err != nil {
		return err
	}
	for _, folder := range []string{podsOfKubelet, registry} {
		if err := isFolder(filepath.Join(o.Kubelet, folder)); err != nil {
			return fmt.Errorf("there is no kubelet here: %w", err)
		}
	}
	for _, folder := range []string{socketFolder, socketsFolder, podsFolder} {
		if err := makeFolder(filepath.Join(o.Folder, folder)); err != nil {
			return fmt.Errorf("make the node's folders: %w", err)
		}
	}
	if owner := int(o.Owner); owner != 0 { // else it stays whose it is
		if err := os.Lchown(filepath.Join(o.Folder, socketFolder), owner, owner); err != nil {
			return fmt.Errorf("give the socket's folder to the agent: %w", err)
		}
	}
	unlock, err := alone(ctx, filepath.Join(o.Folder, lockFile), o.Logger)
	if err != nil {
		return err
	}
	defer unlock()
	d := &driver{o: o, volumes: &volumes{
		kubelet: o.Kubelet,
		sockets: sockets{filepath.Join(o.Folder, socketsFolder), int(o.Owner)},
		pods:    podid.Folder(filepath.Join(o.Folder, podsFolder)),
	}}
	if err := d.volumes.sockets.give(); err != nil {
		return fmt.Errorf("give the folders of pods' sockets to the agent: %w", err)
	}
	if err := d.volumes.pods.Tidy(); err != nil {
		return fmt.Errorf("remove what was being written of pods: %w", err)
	}
	d.sweep()
	return d.serve(ctx)
}

// sweep forgets pods that are gone. What is wrong with one pod is in nobody else's way.
func (d *driver) sweep() {
	if err := d.volumes.sweep(); err != nil {
		d.o.Logger.Error("cannot tell whether pods are gone: they stay known", keyError, err)
	}
}

// serve listens where the kubelet finds it, until ctx ends.
func (d *driver) serve(ctx context.Context) error {
	path := filepath.Join(d.o.Kubelet, registry, d.o.Name+".sock")
	l, remove, err := listen(path)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	defer remove()
	d.o.Logger.Info("the kubelet can register the driver", keySocket, path)
	server := d.server()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err = <-ended:
		return fmt.Errorf("serve the kubelet: %w", err)
	case <-ctx.Done():
	}
	remove() // so that the kubelet knows
	server.GracefulStop()
	if err := <-ended; !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // it had not begun
}

// listen listens at path, in place of whoever did. The socket is there when it can be connected
// to, and for root alone. remove takes it away: only who is alone calls it.
func listen(path string) (l net.Listener, remove func(), err error) {
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.Remove(hidden); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	listener.SetUnlinkOnClose(false)
	if err = os.Chmod(hidden, 0o600); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		_ = listener.Close()
		_ = os.Remove(hidden)
		return nil, nil, err
	}
	return listener, func() { _ = os.Remove(path) }, nil
}

// alone waits until no other driver has the node's folder.
func alone(ctx context.Context, path string, logger hclog.Logger) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600) //nolint:gosec // the folder is a setting
	if err != nil {
		return nil, err
	}
	told := false
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			logger.Warn("another driver serves this node: waiting for its end")
			told = true
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, ctx.Err()
		case <-time.After(lockTry):
		}
	}
}

func isFolder(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", path)
	}
	return err
}

// makeFolder makes a folder that all users may look into. One that is there stays as it is.
func makeFolder(path string) error {
	const mode = 0o755
	err := os.MkdirAll(filepath.Dir(path), mode)
	if err != nil {
		return err
	}
	if err = os.Mkdir(path, mode); err == nil {
		return os.Chmod(path, mode) // whatever the umask
	}
	info, e := os.Lstat(path)
	if e == nil && info.IsDir() {
		return nil
	}
	return err
}
