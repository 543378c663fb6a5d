package csi

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/localapi/podid"
)

// A driver that was killed at whichever step leaves nothing that the next one does not finish:
// when the kubelet asks again, and when the pod was deleted meanwhile.
func TestKilledWhileItMounts(t *testing.T) {
	ask := func(p *process) error { return p.publish(one, "locks") }
	killed(t, 8, func(*process) error { return nil }, ask, map[string]func(*node){
		"asked again": func(n *node) {
			p := n.start()
			n.must(p.publish(one, "locks"))
			n.want("mounted", 2, one, another)
			n.must(p.unpublish(one, "locks"))
			n.want("unmounted", 1, another)
		},
		"given up": func(n *node) {
			p := n.start()
			n.must(p.unpublish(one, "locks"))
			n.want("unmounted", 1, another)
		},
	})
}

func TestKilledWhileItUnmounts(t *testing.T) {
	before := func(p *process) error { return p.publish(one, "locks") }
	ask := func(p *process) error { return p.unpublish(one, "locks") }
	killed(t, 5, before, ask, map[string]func(*node){
		"asked again": func(n *node) {
			p := n.start()
			n.must(p.unpublish(one, "locks"))
			n.want("unmounted", 1, another)
		},
		"cleaned by the kubelet": func(n *node) {
			if len(n.mounts(n.folder(one, "locks"))) > 0 {
				return // it does not clean what is mounted
			}
			n.must(os.RemoveAll(filepath.Join(n.o.Kubelet, podsOfKubelet, one.uid)))
			n.start()
			n.want("the next driver", 1, another)
		},
	})
}

// A pod is known before it can reach the socket.
func TestKnownBeforeItIsMounted(t *testing.T) {
	n := newNode(t)
	p := n.start()
	p.arm("mount")
	if err := p.publish(one, "locks"); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	p.kill()
	n.want("killed", 0, one)
}

// killed kills a driver at each point of a request, in turn. It must come to so many points.
func killed(t *testing.T, want int, before, ask func(*process) error, then map[string]func(*node)) {
	t.Helper()
	reached := map[string]bool{}
	for name, after := range then {
		for _, at := range points {
			t.Run(name+"/"+at.name, func(t *testing.T) {
				n := newNode(t)
				p := n.start()
				n.must(p.publish(another, "locks"))
				n.must(before(p))
				p.arm(at.name)
				err := ask(p)
				if err == nil {
					return // the request does not come there
				}
				if status.Code(err) != codes.Unavailable {
					t.Fatalf("not killed: %v", err)
				}
				p.kill()
				if state := p.cmd.ProcessState.Sys().(syscall.WaitStatus); state.Signal() != syscall.SIGSYS {
					t.Fatalf("ended by %v", state.Signal())
				}
				reached[at.name] = true
				after(n)
			})
		}
	}
	if os.Getenv(roleEnv) == roleNode && len(reached) < want {
		t.Errorf("killed at %d points, not %d: %v", len(reached), want, reached)
	}
}

// The driver that starts forgets the pods that the kubelet has no volume of, and no others.
func TestForgetsPodsThatAreGone(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	n.must(p.publish(another, "locks"))
	p.arm("remove the pod's file")
	if err := p.unpublish(one, "locks"); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	p.kill()
	n.want("killed", 1, one, another)
	p = n.start()
	n.want("the kubelet will ask again", 1, one, another)
	n.must(os.RemoveAll(filepath.Join(n.o.Kubelet, podsOfKubelet, one.uid))) // it does not: it has cleaned up itself
	n.must(p.unpublish(another, "other"))
	n.want("with the next request", 1, another)
	// What was written halfway goes as well.
	n.must(os.WriteFile(filepath.Join(string(n.pods), "."+one.uid), nil, 0o600))
	p.kill()
	n.start()
	n.want("at the next start", 1, another)
}

// A pod whose folder at the kubelet cannot be looked into stays known, and is in nobody else's way: not
// of pods that end, and not of a driver that starts.
func TestDamagedFolderOfAPod(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	n.must(n.pods.Write(podid.Said{UID: another.uid, Namespace: another.namespace, Name: another.name, ServiceAccount: another.account}))
	damaged := filepath.Join(n.o.Kubelet, podsOfKubelet, another.uid)
	n.must(os.MkdirAll(damaged, 0o750))
	n.must(os.WriteFile(filepath.Join(damaged, "volumes"), nil, 0o600))
	if err := p.unpublish(one, "locks"); err != nil {
		t.Errorf("another pod cannot end: %v", err)
	}
	n.want("unmounted", 0, another)
	p.kill()
	p = n.start()
	n.must(p.publish(one, "locks"))
	n.want("the next driver", 1, one, another)
	if !strings.Contains(p.log.String(), "cannot tell whether pods are gone") {
		t.Errorf("the log does not say so: %s", p.log)
	}
}

// On a full disk a pod is not mounted, and stays what it was said to be; nothing half written is left.
func TestFullDisk(t *testing.T) {
	n := newNode(t)
	n.must(os.MkdirAll(string(n.pods), 0o755))
	n.must(unix.Mount("none", string(n.pods), "tmpfs", 0, "size=8192"))
	p := n.start()
	n.must(p.publish(one, "locks"))
	filler := filepath.Join(string(n.pods), "filler")
	n.must(os.WriteFile(filler, make([]byte, 4096), 0o600))
	for _, of := range []pod{one, another} {
		if err := p.publish(of, "more"); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("on a full disk: %v", err)
		}
	}
	n.must(os.Remove(filler))
	n.want("full", 1, one)
	n.must(p.publish(another, "more"))
	n.want("not full any more", 2, one, another)
}
