package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/localapi/podid"
)

// The kubelet keeps a volume at KUBELET/pods/UID/volumes/kubernetes.io~csi/VOLUME, and wants it
// mounted at mount in there. It makes that folder, and the driver the one that it mounts on.
const (
	podsOfKubelet = "pods"
	ofPod         = "volumes/kubernetes.io~csi"
	mountPoint    = "mount"
)

// target is where the kubelet wants a volume.
type target struct{ pod, volume string }

// folder is that of the volume, below the kubelet's folder of pods.
func (t target) folder() string { return filepath.Join(t.pod, ofPod, t.volume) }

// volumes are the mounts on this node. All that it knows is on the node, none of it in here.
type volumes struct {
	kubelet string       // the kubelet's folder
	sockets sockets      // what is mounted
	pods    podid.Folder // what was said of pods

	mu sync.Mutex // one change at a time
}

// target reads a path of the kubelet.
func (v *volumes) target(path string) (target, error) {
	rest, ok := strings.CutPrefix(path, filepath.Join(v.kubelet, podsOfKubelet)+"/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || !podid.ValidPod(parts[0]) || parts[1]+"/"+parts[2] != ofPod || parts[4] != mountPoint {
		return target{}, fmt.Errorf("%q is not where the kubelet of %s has volumes of pods", path, v.kubelet)
	}
	if name := parts[3]; name == "" || name == "." || name == ".." {
		return target{}, fmt.Errorf("%q names no volume", path)
	}
	return target{pod: parts[0], volume: parts[3]}, nil
}

// publish writes down what was said of the pod, and mounts where nothing is mounted. mounted is
// false when it was there already.
func (v *volumes) publish(t target, said podid.Said) (mounted bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	folder, err := v.open(t.folder())
	if err != nil {
		return false, fmt.Errorf("open the folder of the volume: %w", err)
	}
	defer folder.close()
	if err := v.pods.Write(said); err != nil {
		return false, fmt.Errorf("write down pod %s: %w", said.UID, err)
	}
	socket, err := v.sockets.of(t.pod)
	if err == nil {
		defer socket.close()
		mounted, err = mountAt(folder, socket)
	}
	if err != nil {
		return false, errors.Join(err, v.forget(t.pod))
	}
	return mounted, nil
}

// mountAt mounts a folder below another one, unless it is there. What else is mounted there leads
// nowhere, and goes.
func mountAt(below, what dir) (mounted bool, err error) {
	id, err := what.identity()
	if err != nil {
		return false, err
	}
	if _, is, err := below.mounted(mountPoint, id); err != nil || is {
		return false, err
	}
	if _, err := below.unmount(mountPoint); err != nil {
		return false, err
	}
	if err := unix.Mkdirat(int(below), mountPoint, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, fmt.Errorf("make the folder to mount on: %w", err)
	}
	on, err := below.open(mountPoint)
	if err != nil {
		return false, fmt.Errorf("open the folder to mount on: %w", err)
	}
	defer on.close()
	if err := bind(what, on); err != nil {
		return false, err
	}
	return true, nil
}

// unpublish unmounts a volume and removes what the pod was mounted on. When it was the last one of
// the pod, it forgets the pod. What is done already is no error.
func (v *volumes) unpublish(t target) (unmounted int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	folder, err := v.open(t.folder())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, fmt.Errorf("open the folder of the volume: %w", err)
	default:
		defer folder.close()
		if unmounted, err = folder.unmount(mountPoint); err != nil {
			return unmounted, err
		}
		err := unix.Unlinkat(int(folder), mountPoint, unix.AT_REMOVEDIR)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unmounted, fmt.Errorf("remove the folder that was mounted on: %w", err)
		}
	}
	return unmounted, v.forget(t.pod)
}

// forget removes what was said of a pod, if it has no volume any more.
func (v *volumes) forget(pod string) error {
	names, err := v.volumesOf(pod)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		has, err := v.anyMounted(pod, names)
		if err != nil || has {
			return err
		}
	}
	return v.remove(pod)
}

// remove removes the pod's folder, and then what was said of it: as long as that is there, sweep looks at the pod again.
func (v *volumes) remove(pod string) error {
	if err := v.sockets.remove(pod); err != nil {
		return err
	}
	return v.pods.Remove(pod)
}

// anyMounted tells whether one of these volumes is the driver's. Without a folder to compare with,
// any that is mounted may be.
func (v *volumes) anyMounted(pod string, names []string) (bool, error) {
	var id identity
	socket, err := v.sockets.open(pod)
	switch {
	case err == nil:
		defer socket.close()
		if id, err = socket.identity(); err != nil {
			return false, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	for _, name := range names {
		folder, err := v.open(target{pod, name}.folder())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		some, is, err := folder.mounted(mountPoint, id)
		folder.close()
		if err != nil || is || some && id == (identity{}) {
			return true, err
		}
	}
	return false, nil
}

// sweep forgets pods that the kubelet has no CSI volume of any more: it will not ask to unpublish
// one. That happens when the driver was killed after it had unmounted and before it forgot. Pods of which it
// cannot tell stay known; the error says which.
func (v *volumes) sweep() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	pods, err := v.pods.Pods()
	if err != nil {
		return err
	}
	var all error
	for _, pod := range pods {
		names, err := v.volumesOf(pod)
		if err == nil && len(names) == 0 {
			err = v.remove(pod)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("pod %s: %w", pod, err))
		}
	}
	return all
}

// volumesOf are the names of all CSI volumes that the kubelet has of a pod, also of other drivers.
func (v *volumes) volumesOf(pod string) (names []string, err error) {
	d, err := v.open(filepath.Join(pod, ofPod))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.close()
	entries, err := os.ReadDir(d.path())
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// open opens a folder below the kubelet's folder of pods, through no link.
func (v *volumes) open(below string) (dir, error) {
	pods, err := openFolder(filepath.Join(v.kubelet, podsOfKubelet))
	if err != nil {
		// It must be there. So this is not the error of a folder that is not there any more.
		return noDir, errors.New("open the kubelet's folder of pods: " + err.Error())
	}
	defer pods.close()
	return pods.open(below)
}
