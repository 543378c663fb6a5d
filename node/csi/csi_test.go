package csi

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A kubelet finds one socket, which is root's, and is told what CSI demands of a driver.
func TestRegisters(t *testing.T) {
	n := newNode(t)
	p := n.start()
	path := n.plugins()[0]
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	id := spec.NewIdentityClient(p.conn)
	if got, err := id.GetPluginInfo(t.Context(), &spec.GetPluginInfoRequest{}); err != nil || got.GetName() != driverIs || got.GetVendorVersion() != "v1" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := id.Probe(t.Context(), &spec.ProbeRequest{}); err != nil || !got.GetReady().GetValue() {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := id.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{}); err != nil || len(got.GetCapabilities()) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := p.NodeGetCapabilities(t.Context(), &spec.NodeGetCapabilitiesRequest{}); err != nil || len(got.GetCapabilities()) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := p.NodeStageVolume(t.Context(), &spec.NodeStageVolumeRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("%v", err)
	}
	// It goes on when the kubelet does not take it, and the kubelet asks again.
	if _, err := registration.NewRegistrationClient(p.conn).NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{Error: "no"}); err != nil {
		t.Error(err)
	}
	if err := p.publish(one, "locks"); err != nil {
		t.Error(err)
	}
}

// The socket goes with a driver that is stopped, stays after one that was killed, and is replaced
// by the next one. Two at a time do not serve.
func TestOneAfterAnother(t *testing.T) {
	n := newNode(t)
	killed := n.start()
	killed.kill()
	if len(n.plugins()) != 1 {
		t.Errorf("plugins: %v", n.plugins())
	}
	first := n.start()
	second := n.begin()
	eventually(t, "the second waits", func() error {
		if !strings.Contains(second.log.String(), "waiting for its end") {
			return errors.New("it does not say so")
		}
		return nil
	})
	n.must(first.publish(one, "locks"))
	first.hangUp()
	n.must(first.cmd.Process.Signal(syscall.SIGTERM))
	if err := first.cmd.Wait(); err != nil {
		t.Errorf("stopped: %v", err)
	}
	second.register()
	n.must(second.publish(one, "locks"))
	n.want("the second serves", 1, one)
	second.hangUp()
	n.must(second.cmd.Process.Signal(syscall.SIGTERM))
	if err := second.cmd.Wait(); err != nil || len(n.plugins()) != 0 {
		t.Errorf("stopped: %v, plugins %v", err, n.plugins())
	}
	n.want("nobody serves", 1, one)
}

// Each kubelet that starts asks again for every volume. With spiffe-csi, what was mounted doubled each time, until the node was dead.
func TestAskedTenTimes(t *testing.T) {
	n := newNode(t)
	p := n.start()
	var mounts []string
	for i := range 10 {
		n.must(p.publish(one, "locks"))
		n.must(p.publish(another, "locks"))
		n.want(fmt.Sprintf("asked %d times", i+1), 2, one, another)
		if i == 0 {
			mounts = n.mounts(n.o.Kubelet)
			held, err := openFolder(n.target(one, "locks")) // so that no other mount can have its number
			n.must(err)
			defer held.close()
		}
		p.hangUp() // the kubelet ends
		if i%2 == 1 {
			p.kill() // and the driver
			p = n.start()
			continue
		}
		p.register()
	}
	if now := n.mounts(n.o.Kubelet); !slices.Equal(now, mounts) {
		t.Errorf("what was mounted: %q, what is: %q", mounts, now)
	}
	// What is mounted is in no group with another mount: else each mount would come to all of them.
	groups := map[string]bool{}
	for _, line := range n.mounts(n.o.Kubelet) {
		fields := strings.Fields(line)
		for _, flag := range []string{"nosuid", "nodev", "noexec", "ro"} {
			if !strings.Contains(","+fields[5]+",", ","+flag+",") {
				t.Errorf("it is not mounted %s: %s", flag, line)
			}
		}
		groups[fields[6]] = true
	}
	for _, line := range n.mounts(n.dir) {
		if fields := strings.Fields(line); fields[4] == n.dir {
			groups[fields[6]] = true
		}
	}
	if len(groups) != 3 {
		t.Errorf("groups of mounts: %v", slices.Collect(maps.Keys(groups)))
	}
	n.must(p.unpublish(one, "locks"))
	n.want("one is gone", 1, another)
	n.must(p.unpublish(another, "locks"))
	n.want("both are gone", 0)
}

// A pod reaches who listens now, also while no driver runs, and in a container that starts then.
func TestReachesTheSocket(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	target := n.target(one, "locks")
	n.answers(one, "first")
	if got := n.hears(target); got != "first" {
		t.Errorf("heard %q", got)
	}
	n.answers(one, "second") // an upgrade
	if got := n.hears(target); got != "second" {
		t.Errorf("heard %q", got)
	}
	p.kill()
	if got := n.hears(target); got != "second" {
		t.Errorf("without a driver: heard %q", got)
	}
	// A kubelet with readOnly: true has the runtime mount it so.
	container := filepath.Join(n.dir, "container")
	n.must(os.Mkdir(container, 0o755))
	n.must(unix.Mount(target, container, "", unix.MS_BIND, ""))
	n.must(unix.Mount("", container, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	if got := n.hears(container); got != "second" {
		t.Errorf("in a container: heard %q", got)
	}
	if err := os.Remove(filepath.Join(container, "locksidecar.sock")); err == nil {
		t.Error("a container can remove the socket")
	}
}

// Nobody changes the node's folder through a volume, root neither. For a container that mounts a subPath, the
// kubelet makes that folder in the volume, by the name that the pod's author has chosen; where the socket is
// to be, nobody could listen any more.
func TestNobodyWritesThroughAVolume(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	target := n.target(one, "locks")
	if err := os.Mkdir(filepath.Join(target, "locksidecar.sock"), 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("made a folder for a subPath: %v", err)
	}
	n.answers(one, "agent")
	for what, err := range map[string]error{
		"the folder's group": os.Chown(target, -1, 1),
		"the socket's mode":  os.Chmod(filepath.Join(target, "locksidecar.sock"), 0),
		"the socket":         os.Remove(filepath.Join(target, "locksidecar.sock")),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("changed %s: %v", what, err)
		}
	}
	if got := n.hears(target); got != "agent" {
		t.Errorf("heard %q", got)
	}
}

// Each pod has a folder of its own, which belongs to the agent: who has one reaches no other pod's socket. It goes with
// the pod's last volume, with the socket that is in it.
func TestEachPodHasItsOwnSocket(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	n.must(p.publish(one, "more"))
	n.must(p.publish(another, "locks"))
	n.answers(one, "of one")
	n.answers(another, "of another")
	for target, want := range map[string]string{n.target(one, "locks"): "of one", n.target(one, "more"): "of one", n.target(another, "locks"): "of another"} {
		if got := n.hears(target); got != want {
			t.Errorf("%s: heard %q, not %q", target, got, want)
		}
		if entries, err := os.ReadDir(target); err != nil || len(entries) != 1 {
			t.Errorf("%s has %v, %v", target, entries, err)
		}
	}
	for path, owner := range map[string]uint32{n.socket(one): agentIs, filepath.Dir(n.socket(one)): 0} {
		var folder syscall.Stat_t
		if err := syscall.Stat(path, &folder); err != nil || folder.Uid != owner || folder.Gid != owner || folder.Mode&0o777 != 0o755 {
			t.Errorf("%s: %v, user %d, mode %o", path, err, folder.Uid, folder.Mode)
		}
	}
	n.must(p.unpublish(one, "locks"))
	if got := n.hears(n.target(one, "more")); got != "of one" {
		t.Errorf("after the first of two volumes: heard %q", got)
	}
	n.must(p.unpublish(one, "more"))
	n.want("one is gone", 1, another)
	if got := n.hears(n.target(another, "locks")); got != "of another" {
		t.Errorf("after another pod's end: heard %q", got)
	}
}

// What is mounted beneath the socket's folder does not come into pods.
func TestNothingBeneath(t *testing.T) {
	n := newNode(t)
	p := n.start()
	beneath := filepath.Join(n.socket(one), "beneath")
	n.must(os.MkdirAll(beneath, 0o755))
	n.must(unix.Mount("none", beneath, "tmpfs", 0, ""))
	n.must(os.WriteFile(filepath.Join(beneath, "secret"), nil, 0o600))
	n.must(p.publish(one, "locks"))
	later := filepath.Join(n.socket(one), "later")
	n.must(os.Mkdir(later, 0o755))
	n.must(unix.Mount("none", later, "tmpfs", 0, ""))
	n.want("mounted", 1, one)
	if _, err := os.Stat(filepath.Join(n.target(one, "locks"), "beneath", "secret")); err == nil {
		t.Error("a pod sees what is mounted beneath")
	}
}

// A volume that the driver does not make leaves nothing behind.
func TestRefused(t *testing.T) {
	n := newNode(t)
	p := n.start()
	type request = spec.NodePublishVolumeRequest
	said := func(key, value string) func(*request) {
		return func(r *request) { r.VolumeContext[key] = value }
	}
	at := func(path string) func(*request) {
		return func(r *request) { r.TargetPath = strings.Replace(r.TargetPath, n.folder(one, "locks"), path, 1) }
	}
	for name, c := range map[string]struct {
		change func(*request)
		want   string
	}{
		"writable":         {func(r *request) { r.Readonly = false }, "readOnly: true"},
		"persistent":       {said(ephemeral, "false"), "must be an inline one"},
		"no pod's info":    {func(r *request) { r.VolumeContext = nil }, "podInfoOnMount"},
		"an attribute":     {said("profile", "x"), `attribute "profile"`},
		"a device":         {func(r *request) { r.VolumeCapability.AccessType = &spec.VolumeCapability_Block{} }, "no device"},
		"staged":           {func(r *request) { r.StagingTargetPath = "/x" }, "no device"},
		"no volume":        {func(r *request) { r.VolumeId = "" }, "names no volume"},
		"no target":        {func(r *request) { r.TargetPath = "" }, "not where the kubelet"},
		"another's uid":    {said(podUID, another.uid), "the path is of pod"},
		"no uid":           {said(podUID, ""), "the path is of pod"},
		"a namespace":      {said(podNamespace, "a/b"), "no pod of Kubernetes"},
		"an account":       {said(serviceAccount, ""), "no pod of Kubernetes"},
		"out of it":        {at(n.o.Kubelet + "/pods/" + one.uid + "/volumes/kubernetes.io~csi/.."), "names no volume"},
		"two steps":        {at(n.folder(one, "locks") + "/x"), "not where the kubelet"},
		"another folder":   {at("/etc/" + one.uid + "/volumes/kubernetes.io~csi/x"), "not where the kubelet"},
		"of another kind":  {at(n.o.Kubelet + "/pods/" + one.uid + "/volumes/kubernetes.io~secret/x"), "not where the kubelet"},
		"no pod":           {at(n.o.Kubelet + "/pods/x/volumes/kubernetes.io~csi/x"), "not where the kubelet"},
		"a name with dots": {at(n.o.Kubelet + "/pods/" + one.uid + "/volumes/kubernetes.io~csi/."), "names no volume"},
	} {
		r := n.request(one, "locks")
		c.change(r)
		_, err := p.NodePublishVolume(t.Context(), r)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		n.want(name, 0)
	}
	r := n.request(one, "locks")
	r.VolumeContext["x"] = strings.Repeat("x", maxRequest)
	if _, err := p.NodePublishVolume(t.Context(), r); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("too large: %v", err)
	}
	for _, target := range []string{"", "/etc", n.folder(one, "locks"), n.target(one, "..")} {
		_, err := p.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "x", TargetPath: target})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("unpublish %q: %v", target, err)
		}
	}
	n.want("at the end", 0)
}

// What goes is one volume. The pod is known until its last one goes, whatever other drivers have.
func TestUnpublish(t *testing.T) {
	n := newNode(t)
	p := n.start()
	for _, volume := range []string{"a", "b"} {
		n.must(p.publish(one, volume))
		n.must(p.publish(another, volume))
	}
	foreign := n.target(one, "foreign")
	n.must(os.MkdirAll(foreign, 0o755))
	n.must(unix.Mount("none", foreign, "tmpfs", 0, ""))
	n.want("mounted", 5, one, another)
	for range 2 { // the kubelet may not have had the answer
		n.must(p.unpublish(one, "a"))
		n.want("the first volume", 4, one, another)
	}
	if _, err := os.Lstat(n.target(one, "a")); !os.IsNotExist(err) {
		t.Errorf("the folder that was mounted on: %v", err)
	}
	for range 2 {
		n.must(p.unpublish(one, "b"))
		n.want("the last volume", 3, another)
	}
	n.must(os.RemoveAll(filepath.Join(n.o.Kubelet, podsOfKubelet, "none")))
	n.must(p.unpublish(pod{uid: "22222222-2222-4333-8444-555555555555"}, "a")) // nobody knows of it
	n.want("an unknown pod", 3, another)
}

// Whatever leads out of a volume's folder is not followed.
func TestFollowsNoLink(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(another, "locks"))
	// The folder of the volume is a link.
	n.must(os.MkdirAll(filepath.Dir(n.folder(one, "linked")), 0o750))
	n.must(os.Symlink(n.folder(another, "locks"), n.folder(one, "linked")))
	if err := p.unpublish(one, "linked"); err == nil {
		t.Error("unmounted through a link")
	}
	if err := p.publish(one, "linked"); err == nil {
		t.Error("mounted through a link")
	}
	n.must(os.Remove(n.folder(one, "linked")))
	// What is mounted on is a link.
	n.must(os.MkdirAll(n.folder(one, "locks"), 0o750))
	n.must(os.Symlink(n.target(another, "locks"), n.target(one, "locks")))
	if err := p.unpublish(one, "locks"); err == nil {
		t.Error("unmounted through a link")
	}
	if err := p.publish(one, "locks"); err == nil {
		t.Error("mounted through a link")
	}
	n.want("links", 1, another)
	n.must(os.Remove(n.target(one, "locks")))
	n.must(p.publish(one, "locks"))
	n.want("no link", 2, one, another)
}

// What is mounted more than once, or leads nowhere because the node's folder was made again, is mounted once and leads there.
func TestMountedOtherwise(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	target := n.target(one, "locks")
	socket := n.socket(one)
	n.must(os.Remove(socket))
	n.answers(one, "new")
	n.must(p.publish(one, "locks"))
	n.want("mounted again", 1, one)
	if got := n.hears(target); got != "new" {
		t.Errorf("heard %q", got)
	}
	n.must(unix.Mount(socket, target, "", unix.MS_BIND, ""))
	n.must(unix.Mount("none", target, "tmpfs", 0, ""))
	held, err := os.Create(filepath.Join(target, "held")) // who has a file open there keeps no pod from ending
	n.must(err)
	defer func() { _ = held.Close() }()
	n.must(p.unpublish(one, "locks"))
	n.want("unmounted", 0)
}
