package charttest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// nodeValues are those of one sidecar per node.
const nodeValues = `
mode: node
node: {allow: ["shop/*", "team-*/orders"], spaces: {shop-eu: shop}, perNamespace: {sessions: 700, holds: 1000000, waiters: 90}, perServiceAccount: {sessions: 300, inFlight: 40, detached: 12}}
profiles: {default: {store: {secret: {name: locks}, files: {secret: redis, password: password}}, drain: 90s, ttl: 5s, env: {ZONE: {fieldRef: {fieldPath: spec.nodeName}}}}}
`

// ofNode is an object of mode: node by its kind and name.
func ofNode[T any](t *testing.T, v, kind, name string) *T {
	t.Helper()
	for _, o := range objects(t, theChart(t), parse(t, v), "v1.36") {
		if o.kind() == kind && o.name() == name {
			return decode[T](t, o)
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// TestNodeAgent: the agent has the secrets and no rights, and is told whom to serve.
func TestNodeAgent(t *testing.T) {
	set := ofNode[appsv1.DaemonSet](t, nodeValues, "apps/v1/DaemonSet", "locksidecar-agent")
	spec := set.Spec.Template.Spec
	c := spec.Containers[0]
	for _, want := range []string{"--principal=pod", "--space=namespace", "--allow-service-account=shop/*,team-*/orders,locks/locksidecar-test", "--space-of=shop-eu=shop", "--pods-folder=/run/locksidecar-node/pods", "--sockets-folder=/run/locksidecar-node/sockets"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("no %s in %v", want, c.Args)
		}
	}
	for name, value := range map[string]string{
		"LOCKSIDECAR_MAX_CONNECTIONS_PER_SPACE": "0", "LOCKSIDECAR_MAX_SESSIONS_PER_SPACE": "700", "LOCKSIDECAR_MAX_HOLDS_PER_SPACE": "1000000", "LOCKSIDECAR_MAX_WAITERS_PER_SPACE": "90",
		"LOCKSIDECAR_MAX_SESSIONS_PER_SERVICE_ACCOUNT": "300", "LOCKSIDECAR_MAX_DETACHED_PER_SERVICE_ACCOUNT": "12", "LOCKSIDECAR_MAX_CONNECTIONS_PER_SERVICE_ACCOUNT": "0", "LOCKSIDECAR_MAX_IN_FLIGHT_PER_SERVICE_ACCOUNT": "40", "LOCKSIDECAR_MAX_IN_FLIGHT_PER_SPACE": "0",
		"LOCKSIDECAR_TTL": "5s", "LOCKSIDECAR_SOCKET": "/run/locksidecar-node/socket/locksidecar.sock", "LOCKSIDECAR_HTTP_ADDR": ":24737", "GOMEMLIMIT": "460MiB", "LOCKSIDECAR_MAX_CONNECTIONS_PER_UID": "64",
	} {
		wantEnv(t, &c, name, value)
	}
	for _, e := range c.Env {
		if e.Name == "LOCKSIDECAR_ADMIN_UID" {
			t.Error("a user is an admin, whose pods are not known")
		}
		if e.Name == "LOCKSIDECAR_STORE" && (e.ValueFrom == nil || e.ValueFrom.SecretKeyRef.Name != "locks") || e.Name == "ZONE" && e.ValueFrom.FieldRef == nil {
			t.Errorf("%+v", e)
		}
	}
	s := c.SecurityContext
	if *s.RunAsUser != 57432 || !*s.RunAsNonRoot || *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || len(s.Capabilities.Add) > 0 {
		t.Errorf("it may %+v", s)
	}
	if !spec.HostPID || spec.HostNetwork || *spec.AutomountServiceAccountToken || *spec.TerminationGracePeriodSeconds != 97 {
		t.Errorf("hostPID %v, hostNetwork %v, %d s to stop", spec.HostPID, spec.HostNetwork, *spec.TerminationGracePeriodSeconds)
	}
	if u := set.Spec.UpdateStrategy.RollingUpdate; u.MaxSurge.IntValue() != 1 || u.MaxUnavailable.IntValue() != 0 {
		t.Errorf("an upgrade: %+v", u)
	}
	writable := map[string]string{}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			writable[m.MountPath] = m.Name
		}
	}
	if want := map[string]string{"/run/locksidecar-node/socket": "socket", "/run/locksidecar-node/sockets": "sockets"}; !maps.Equal(writable, want) {
		t.Errorf("it may write to %v", writable)
	}
	if p := c.ReadinessProbe; p == nil || p.HTTPGet.Path != "/readyz?once=true" {
		t.Errorf("Kubernetes does not know when it can take over: %+v", p)
	}
	if set.Spec.Template.Labels["locksidecar.io/injected"] != "true" {
		t.Error("the PodMonitor does not find it")
	}
}

// TestNodeHelmTest: the pod of helm test has the service account that the agent serves besides those of the values.
func TestNodeHelmTest(t *testing.T) {
	account := ofNode[corev1.ServiceAccount](t, nodeValues, "v1/ServiceAccount", "locksidecar-test")
	pod := ofNode[corev1.Pod](t, nodeValues, "v1/Pod", "locksidecar-test")
	if pod.Spec.ServiceAccountName != account.Name || *account.AutomountServiceAccountToken {
		t.Errorf("the pod is of %q", pod.Spec.ServiceAccountName)
	}
	for _, o := range []map[string]string{account.Annotations, pod.Annotations} {
		if o["helm.sh/hook"] != "test" {
			t.Errorf("it is there outside of the test: %v", o)
		}
	}
}

// TestNodeDriverPod: the driver has privileges and no secrets, and makes the socket's folder for the agent.
func TestNodeDriverPod(t *testing.T) {
	v := strings.Replace(nodeValues, "node: {", "node: {kubeletFolder: /var/lib/k0s/kubelet, driverName: locks.example.com, ", 1)
	set := ofNode[appsv1.DaemonSet](t, v, "apps/v1/DaemonSet", "locksidecar-driver")
	spec := set.Spec.Template.Spec
	c := spec.Containers[0]
	for _, want := range []string{"csi", "--driver-name=locks.example.com", "--kubelet-folder=/var/lib/k0s/kubelet", "--socket-owner=57432", "--node-name=$(NODE_NAME)"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("no %s in %v", want, c.Args)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
			t.Errorf("it is told %s", e.Name)
		}
	}
	for _, vol := range spec.Volumes {
		if vol.HostPath == nil {
			t.Errorf("it has the volume %s", vol.Name)
		}
	}
	if m := c.VolumeMounts[1]; m.MountPath != "/var/lib/k0s/kubelet" || *m.MountPropagation != corev1.MountPropagationBidirectional {
		t.Errorf("%+v", m)
	}
	if spec.HostPID || *spec.AutomountServiceAccountToken || spec.PriorityClassName != "system-node-critical" {
		t.Errorf("%+v", spec)
	}
	d := ofNode[storagev1.CSIDriver](t, v, "storage.k8s.io/v1/CSIDriver", "locks.example.com")
	if !*d.Spec.PodInfoOnMount || *d.Spec.AttachRequired || *d.Spec.FSGroupPolicy != storagev1.NoneFSGroupPolicy || len(d.Spec.VolumeLifecycleModes) != 1 || d.Spec.VolumeLifecycleModes[0] != storagev1.VolumeLifecycleEphemeral ||
		d.Labels["security.kubernetes.io/csi-ephemeral-volume-profile"] != "restricted" {
		t.Errorf("%+v %+v", d.Spec, d.Labels)
	}
}

// TestNodePods: a pod gets the volume, the mount and the variable in each container, and no container.
func TestNodePods(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, nodeValues), "v1.36"))
	ns := namespaces()["locks-plain"]
	before := parsePod(t, plain(""))
	pod, warnings, err := e.admit(t.Context(), ns, before)
	if err != nil || warnings != "" {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	if len(pod.Spec.InitContainers) != len(before.Spec.InitContainers) || len(pod.Spec.Containers) != len(before.Spec.Containers) {
		t.Errorf("containers were added: %+v", pod.Spec)
	}
	volumes := pod.Spec.Volumes
	if i := len(volumes) - 1; volumes[i].Name != "locksidecar" || volumes[i].CSI == nil || volumes[i].CSI.Driver != "node.locksidecar.io" || volumes[i].CSI.ReadOnly == nil || !*volumes[i].CSI.ReadOnly {
		t.Errorf("volumes: %+v", volumes)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		wantEnv(t, &c, "LOCKSIDECAR_SOCKET", socket)
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == "locksidecar" && m.MountPath == directory && m.ReadOnly
		}) {
			t.Errorf("%s mounts %+v", c.Name, c.VolumeMounts)
		}
	}
	if pod.Labels["locksidecar.io/injected"] != "node" {
		t.Errorf("labels: %v", pod.Labels)
	}
	// The API server asks again when others have changed the pod.
	again, _, err := e.admit(t.Context(), ns, pod.DeepCopy())
	if err != nil || len(again.Spec.Volumes) != len(volumes) {
		t.Errorf("once more: %v, %+v", err, again.Spec.Volumes)
	}
}

// TestNodeRefusals: pods that ask for what one sidecar per node cannot give, or that could act as others.
func TestNodeRefusals(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, nodeValues), "v1.36"))
	host := func(path string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}})
		}
	}
	const leads = "may not have a hostPath that leads to"
	for _, c := range []struct {
		name, annotations string
		change            func(*corev1.Pod)
		want              string
	}{
		{"a ttl of its own", ", locksidecar.io/ttl: 5s", nil, "the annotation locksidecar.io/ttl has no effect, because one sidecar serves all pods of a node"},
		{"another volume of that name", "", func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "locksidecar", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}, "that is not of the driver node.locksidecar.io"},
		{"hostPID", "", func(p *corev1.Pod) { p.Spec.HostPID = true }, "may not have hostPID"},
		{"the agent's folder", "", host("/run/locksidecar-node/pods"), leads},
		{"by another name", "", host("/var//run/./locksidecar-node/"), leads},
		{"a folder above it", "", host("/run"), leads},
		{"the root", "", host("/"), leads},
		{"cgroups", "", host("/sys/fs/cgroup/kubepods"), leads},
		{"the kubelet's folder", "", host("/var/lib"), leads},
		{"something else", "", host("/run/other"), ""},
		{"a name that begins like it", "", host("/run/locksidecar-node2"), ""},
	} {
		for _, ns := range []string{"locks-plain", "locks-opted-in"} {
			pod := parsePod(t, plain(c.annotations))
			if c.change != nil {
				c.change(pod)
			}
			namespace := namespaces()[ns]
			if ns == "locks-opted-in" { // one that opts out, there
				if !strings.Contains(c.want, "may not have") && c.want != "" {
					continue
				}
				pod.Annotations = map[string]string{"locksidecar.io/inject": "false"}
			}
			_, _, err := e.admit(t.Context(), namespace, pod)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s in %s: %v", c.name, ns, err)
			}
		}
	}
}

// TestNodeValues: what mode: node cannot do is refused while rendering.
func TestNodeValues(t *testing.T) {
	for _, c := range []struct{ name, values, want string }{
		{"nobody to serve", `{mode: node}`, "mode: node serves nobody: set node.allow"},
		{"two profiles", `{mode: node, node: {allow: ["*/*"]}, profiles: {default: {}, other: {}}}`, "keep one of default, other"},
		{"users", `{mode: node, node: {allow: ["*/*"]}, profileDefaults: {allowUids: [1000]}}`, "leave out allowUids"},
		{"no port", `{mode: node, node: {allow: ["*/*"]}, profileDefaults: {httpPort: 0}}`, "mode: node needs httpPort"},
		{"any user", `{mode: node, node: {allow: ["*/*"]}, profileDefaults: {runAsUser: 0}}`, "and runAsUser"},
		{"a store that two agents do not share", `{mode: node, node: {allow: ["*/*"]}, profiles: {default: {store: {url: "embedded:"}}}}`, "mode: node cannot use the store embedded:"},
		{"an upgrade that does not wait", `{mode: node, node: {allow: ["*/*"]}, profileDefaults: {readiness: never}}`, "mode: node cannot do with readiness: never"},
		{"no such mode", `{mode: pod}`, "/mode"},
		{"no pattern", `{mode: node, node: {allow: [shop]}}`, "/node/allow/0"},
		{"a list in one", `{mode: node, node: {allow: ["shop/a,bank/*"]}}`, "/node/allow/0"},
		{"no such limit", `{mode: node, node: {allow: ["*/*"], perServiceAccount: {bytes: 1}}}`, "/node/perServiceAccount"},
		{"less than nothing", `{mode: node, node: {allow: ["*/*"], perServiceAccount: {sessions: -1}}}`, "/node/perServiceAccount/sessions"},
		{"a space with a slash", `{mode: node, node: {allow: ["*/*"], spaces: {shop: /}}}`, "/node/spaces/shop"},
	} {
		if _, err := render(theChart(t), parse(t, c.values), "v1.36"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
	if _, err := render(theChart(t), parse(t, `{mode: node, node: {allow: ["*/*"]}, injection: {enabled: false}}`), "v1.29"); err != nil {
		t.Errorf("an old cluster, without policies: %v", err)
	}
}

// TestNodeConnections: no pod has more than a quarter of the agent's connections, unless a value says so.
func TestNodeConnections(t *testing.T) {
	for v, want := range map[string]string{
		"{}": "64", "{maxConnections: 1000}": "64", "{maxConnections: 100}": "25", "{maxConnections: 2}": "1", "{maxConnections: 10, maxConnectionsPerUid: 9}": "9",
	} {
		set := ofNode[appsv1.DaemonSet](t, "{mode: node, node: {allow: ['*/*']}, profileDefaults: "+v+"}", "apps/v1/DaemonSet", "locksidecar-agent")
		wantEnv(t, &set.Spec.Template.Spec.Containers[0], "LOCKSIDECAR_MAX_CONNECTIONS_PER_UID", want)
	}
}

// TestNodePullSecrets: a registry that wants a password can have the image.
func TestNodePullSecrets(t *testing.T) {
	v := strings.Replace(nodeValues, "node: {", "node: {imagePullSecrets: [registry, other], ", 1)
	want := []corev1.LocalObjectReference{{Name: "registry"}, {Name: "other"}}
	for _, part := range []string{"agent", "driver"} {
		set := ofNode[appsv1.DaemonSet](t, v, "apps/v1/DaemonSet", "locksidecar-"+part)
		if got := set.Spec.Template.Spec.ImagePullSecrets; !slices.Equal(got, want) {
			t.Errorf("%s: %v", part, got)
		}
	}
	if got := ofNode[corev1.Pod](t, v, "v1/Pod", "locksidecar-test").Spec.ImagePullSecrets; !slices.Equal(got, want) {
		t.Errorf("helm test: %v", got)
	}
}

// TestNodesOfTwoReleases: an agent takes the socket of who serves its folder. Releases with drivers of their own have
// folders of their own, so that none takes over the pods of another one, with another store.
func TestNodesOfTwoReleases(t *testing.T) {
	folders := map[string]string{}
	for _, release := range []struct{ name, driver string }{{"locksidecar", "node.locksidecar.io"}, {"other-locksidecar", "other.example.com"}} {
		v := strings.Replace(nodeValues, "node: {", "injection: {enabled: false}\nnode: {driverName: "+release.driver+", ", 1)
		for _, o := range objectsOf(t, theChart(t), parse(t, v), "v1.36", release.name) {
			if o.kind() != "apps/v1/DaemonSet" {
				continue
			}
			for _, volume := range decode[appsv1.DaemonSet](t, o).Spec.Template.Spec.Volumes {
				if volume.HostPath == nil || volume.Name == "cgroups" || volume.Name == "kubelet" {
					continue
				}
				if !strings.HasPrefix(volume.HostPath.Path, "/run/locksidecar-node/"+release.driver) {
					t.Errorf("%s has the folder %s", o.name(), volume.HostPath.Path)
				}
				if other, taken := folders[volume.HostPath.Path]; taken && other != release.name {
					t.Errorf("%s and %s share %s", other, release.name, volume.HostPath.Path)
				}
				folders[volume.HostPath.Path] = release.name
			}
		}
	}
	if len(folders) != 8 {
		t.Errorf("folders: %v", folders)
	}
}
