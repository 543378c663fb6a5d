// Package podid tells whose a cgroup is: which pod's and container's, or which systemd unit's.
//
// It goes by the path alone, from the root of all cgroups. Who may make cgroups below its own
// chooses their names. So the first part of a path that names somebody counts, and what comes
// after it is not looked at. A path that is not exactly as the kubelet or systemd makes it is
// refused. It does no I/O, but to read and write down what the kubelet has said of a pod, see Folder.
package podid

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// ErrUnknown: the path is not one of a container, or of a unit.
var ErrUnknown = errors.New("whose the cgroup is cannot be told")

func unknown(path, why string) error {
	return fmt.Errorf("%w: %q %s", ErrUnknown, path, why)
}

// Place is where a container's processes are.
type Place struct {
	Pod       string // the pod's uid, as the API server writes it
	Container string // the container's id
}

var (
	// A pod's uid is a UUID. That of a pod from a file on the node is a hash.
	podUID = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})$`)
	})
	containerID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
)

// Pod reads a path that the kubelet and the container runtime have made, with either cgroup
// driver:
//
//	/kubepods/burstable/podUID/ID
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
//
// The class (burstable, besteffort) is missing for a pod that is guaranteed. The error is an ErrUnknown.
func Pod(path string) (Place, error) {
	root, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	parts := strings.Split(rest, "/")
	switch {
	case !strings.HasPrefix(path, "/"):
	case root == "kubepods":
		return pod(path, parts, byName)
	case root == "kubepods.slice":
		return pod(path, parts, bySlice)
	}
	return Place{}, unknown(path, "is not in the kubelet's cgroup")
}

// driver is how a cgroup driver names what is in the kubelet's cgroup. class is empty for a pod
// that is guaranteed.
type driver struct {
	class     func(class string) string
	pod       func(class, name string) (uid string, ok bool)
	container func(name string) (id string) // empty: it is none
}

var (
	byName = driver{
		class:     func(class string) string { return class },
		pod:       func(_, name string) (string, bool) { return strings.CutPrefix(name, "pod") },
		container: func(name string) string { return strings.TrimPrefix(name, "crio-") },
	}
	bySlice = driver{
		class: func(class string) string { return "kubepods-" + class + ".slice" },
		pod: func(class, name string) (string, bool) {
			if class != "" {
				class += "-"
			}
			name, before := strings.CutPrefix(name, "kubepods-"+class+"pod")
			name, after := strings.CutSuffix(name, ".slice")
			// systemd takes a dash for a step down, so the kubelet writes others.
			return strings.ReplaceAll(name, "_", "-"), before && after && !strings.Contains(name, "-")
		},
		container: func(name string) string {
			for _, runtime := range []string{"cri-containerd-", "crio-", "docker-"} {
				id, before := strings.CutPrefix(name, runtime)
				id, after := strings.CutSuffix(id, ".scope")
				if before && after {
					return id
				}
			}
			return ""
		},
	}
)

// pod reads what comes after the root.
func pod(path string, parts []string, d driver) (Place, error) {
	class := ""
	for _, c := range []string{"burstable", "besteffort"} {
		if parts[0] == d.class(c) {
			class, parts = c, parts[1:]
			break
		}
	}
	if len(parts) < 2 {
		return Place{}, unknown(path, "is not a container's")
	}
	uid, ok := d.pod(class, parts[0])
	if !ok || !podUID().MatchString(uid) {
		return Place{}, unknown(path, "names no pod where one is expected")
	}
	id := d.container(parts[1])
	if !containerID().MatchString(id) {
		return Place{}, unknown(path, "names no container where one is expected")
	}
	return Place{Pod: uid, Container: id}, nil
}
