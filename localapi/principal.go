package localapi

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/localapi/podid"
)

// Principals tells who has made a connection, by what the kernel tells and not by what the
// client says. It does not block. Whom it gives an error for may do nothing.
type Principals func(*net.UnixConn) (Who, error)

// Who is who has made a connection.
type Who struct {
	Name    string // of the principal
	Account string // the service account of Kubernetes whose limits it counts for as well, as NAMESPACE/NAME; empty: it has none
}

// UnitPrincipal is the name of a systemd unit as a principal.
func UnitPrincipal(unit string) string { return "unit:" + unit }

// UnitOf is the unit of such a name.
func UnitOf(principal string) string { return strings.TrimPrefix(principal, UnitPrincipal("")) }

// ByUnit names who has connected by the systemd unit that the process is in; of what a user has
// started, by login or by a systemd of its own, by the slice of that user. It fails where the kernel
// cannot tell for sure, see peercred.FindCgroups.
func ByUnit() (Principals, error) {
	cgroups, err := peercred.FindCgroups()
	if err != nil {
		return nil, err
	}
	return func(c *net.UnixConn) (Who, error) {
		path, err := cgroups.Of(c)
		if err != nil {
			return Who{}, err
		}
		unit, err := podid.Unit(path)
		if err != nil {
			return Who{}, err
		}
		return Who{Name: UnitPrincipal(unit)}, nil
	}, nil
}

// NodePrincipal is the name of who has connected from the sidecar's own container, of a sidecar that
// names pods.
const NodePrincipal = "agent:node"

const podPrincipal = "pod:"

// NamespaceOf is the namespace of Kubernetes of a pod's name as a principal ("pod:NAMESPACE/POD");
// empty: it is no pod's.
func NamespaceOf(principal string) string {
	pod, ok := strings.CutPrefix(principal, podPrincipal)
	if !ok {
		return ""
	}
	namespace, _, _ := strings.Cut(pod, "/")
	return namespace
}

// errNotAllowed: the settings name others.
var errNotAllowed = errors.New("its service account is not among those that may")

// ByPod names who has connected by the pod that the process is in, of those of which the kubelet has
// said something, and which allow takes. Whoever is in the sidecar's own container is
// NodePrincipal. It fails where the kernel cannot tell for sure, see peercred.FindCgroups.
func ByPod(pods podid.Folder, allow func(podid.Principal) bool) (Principals, error) {
	cgroups, err := peercred.FindCgroups()
	if err != nil {
		return nil, err
	}
	path, err := cgroups.Own()
	if err != nil {
		return nil, err
	}
	own, err := podid.Pod(path)
	if err != nil {
		own = podid.Place{} // nobody's
	}
	return func(c *net.UnixConn) (Who, error) {
		path, err := cgroups.Of(c)
		if err != nil {
			return Who{}, err
		}
		place, err := podid.Pod(path)
		switch {
		case err != nil:
			return Who{}, err
		case place == own:
			return Who{Name: NodePrincipal}, nil
		}
		pod, err := pods.Principal(place)
		switch {
		case err != nil:
			return Who{}, err
		case !allow(pod):
			return Who{}, fmt.Errorf("%w: %s of namespace %s", errNotAllowed, pod.ServiceAccount, pod.Namespace)
		}
		return Who{Name: podPrincipal + pod.Namespace + "/" + pod.Pod, Account: pod.Namespace + "/" + pod.ServiceAccount}, nil
	}, nil
}
