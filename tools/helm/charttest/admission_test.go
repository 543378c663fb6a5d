package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	socket    = "/run/locksidecar/locksidecar.sock"
	directory = "/run/locksidecar"
)

// theValues are those that most cases of admission are for.
const theValues = `
profiles:
  default: {store: {url: "redis://redis:6379"}, namespace: shop, resources: {limits: {cpu: 500m}}}
  billing: {store: {secret: {name: mysql, key: dsn}}, ttl: 20s, readiness: never}
  files: {store: {url: "rediss://app@redis", files: {secret: redis, password: pw}}, httpPort: 0}
  reserved: {store: {url: "redis://other"}, onlyIn: [locks-opted-in, "locks-team-*"], overrides: [ttl]}
injection: {excludedPods: {app: [redis, mysql]}}
`

// ignoring are theValues where failures are to be ignored.
var ignoring = strings.Replace(theValues, "injection: {", "injection: {failurePolicy: Ignore, ", 1)

// The namespaces of the cases.
func namespaces() map[string]*corev1.Namespace {
	all := map[string]*corev1.Namespace{}
	for name, extra := range map[string]map[string]string{
		"locks-plain":    nil,
		"locks-opted-in": {"locksidecar.io/inject": "enabled"},
		"locks-refusing": {"locksidecar.io/inject": "disabled"},
		"kube-system":    nil,
		"locks-team-a":   nil,
	} {
		labels := map[string]string{"kubernetes.io/metadata.name": name}
		for k, v := range extra {
			labels[k] = v
		}
		all[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	return all
}

// admissionCase is a pod and what must become of it.
type admissionCase struct {
	name      string
	namespace string // default: locks-plain
	pod       string // YAML of {annotations, labels, spec}
	refused   string // a part of the message
	untouched bool
	check     func(t *testing.T, pod *corev1.Pod)
}

// plain is a pod that asks for the sidecar, with more annotations.
func plain(annotations string) string {
	return `{annotations: {locksidecar.io/inject: "true"` + annotations + `}, spec: {containers: [{name: app, image: app}]}}`
}

// mirror is the API's picture of a static pod that asks for the sidecar.
func mirror(annotations string) string {
	return `{annotations: {locksidecar.io/inject: "true", kubernetes.io/config.mirror: abc` + annotations + `}, spec: {nodeName: node, containers: [{name: app, image: app}]}}`
}

// mounting is a pod whose app has these mounts.
func mounting(mounts string) string {
	return `{annotations: {locksidecar.io/inject: "true"}, spec: {volumes: [{name: v, emptyDir: {}}, {name: locksidecar, emptyDir: {}}], containers: [{name: app, image: app, volumeMounts: [` + mounts + `]}]}}`
}

// withPort is a pod whose app has a port.
func withPort(port string) string {
	return `{annotations: {locksidecar.io/inject: "true"}, spec: {containers: [{name: app, image: app, ports: [{` + port + `}]}]}}`
}

// byAffinity is a pod for the nodes of one of the expressions.
func byAffinity(first, second string) string {
	return `{annotations: {locksidecar.io/inject: "true"}, spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
		{matchExpressions: [` + first + `]}, {matchExpressions: [{key: a, operator: Exists}, ` + second + `]}]}}}, containers: [{name: app, image: app}]}}`
}

var admissionCases = []admissionCase{
	{name: "annotated", pod: plain(""), check: func(t *testing.T, p *corev1.Pod) {
		s := sidecar(t, p)
		wantEnv(t, s, "LOCKSIDECAR_STORE", "redis://redis:6379")
		if got := p.Annotations["locksidecar.io/sidecar"]; got != "profile default, chart "+theChart(t).Metadata.Version {
			t.Errorf("the pod's sidecar is of %q", got)
		}
		wantEnv(t, s, "LOCKSIDECAR_NAMESPACE", "shop")
		wantEnv(t, s, "LOCKSIDECAR_HTTP_ADDR", ":24737")
		if s.RestartPolicy == nil || *s.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Error("it is not a native sidecar")
		}
		if got := s.Resources.Limits.Cpu().String(); got != "500m" {
			t.Errorf("CPU limit %s", got)
		}
		if s.ReadinessProbe == nil || s.ReadinessProbe.HTTPGet == nil {
			t.Error("no readiness by HTTP")
		}
	}},
	{name: "not annotated", pod: `{spec: {containers: [{name: app, image: app}]}}`, untouched: true},
	{name: "annotated otherwise", pod: `{annotations: {locksidecar.io/profile: nonsense, a: b}, spec: {containers: [{name: app, image: app}]}}`, untouched: true},
	{name: "annotated false", pod: `{annotations: {locksidecar.io/inject: "false"}, spec: {containers: [{name: app, image: app}]}}`, untouched: true},
	{name: "mistyped yes", pod: `{annotations: {locksidecar.io/inject: "yes"}, spec: {containers: [{name: app, image: app}]}}`,
		refused: "the annotation locksidecar.io/inject is 'yes': must be 'true' or 'false'"},
	{name: "namespace opted in", namespace: "locks-opted-in", pod: `{spec: {containers: [{name: app, image: app}]}}`, check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "namespace opted in, annotated too", namespace: "locks-opted-in", pod: plain(""), check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "namespace opted in, profile", namespace: "locks-opted-in", pod: `{annotations: {locksidecar.io/profile: billing}, spec: {containers: [{name: app, image: app}]}}`,
		check: func(t *testing.T, p *corev1.Pod) {
			wantEnv(t, sidecar(t, p), "LOCKSIDECAR_TTL", "20s")
			if got := p.Annotations["locksidecar.io/sidecar"]; got != "profile billing, chart "+theChart(t).Metadata.Version {
				t.Errorf("the pod's sidecar is of %q", got)
			}
		}},
	{name: "namespace opted in, bad profile", namespace: "locks-opted-in", pod: `{annotations: {locksidecar.io/profile: nonsense}, spec: {containers: [{name: app, image: app}]}}`,
		refused: "names 'nonsense', which is not a profile; there are: billing, default, files, reserved"},
	{name: "namespace opted in, pod out", namespace: "locks-opted-in", pod: `{annotations: {locksidecar.io/inject: "false"}, spec: {containers: [{name: app, image: app}]}}`, untouched: true},
	{name: "namespace with another value", namespace: "locks-refusing", pod: `{spec: {containers: [{name: app, image: app}]}}`, untouched: true},
	{name: "excluded namespace", namespace: "kube-system", pod: plain(""), untouched: true},
	{name: "Windows", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {os: {name: windows}, containers: [{name: app, image: app}]}}`, untouched: true},
	{name: "Windows by node selector", namespace: "locks-opted-in", pod: `{spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: app, image: app}]}}`, untouched: true},

	{name: "Windows by affinity", pod: byAffinity("{key: kubernetes.io/os, operator: In, values: [windows]}", "{key: kubernetes.io/os, operator: NotIn, values: [linux]}"), untouched: true},
	{name: "Windows or Linux by affinity", pod: byAffinity("{key: kubernetes.io/os, operator: In, values: [windows]}", "{key: kubernetes.io/os, operator: In, values: [linux, windows]}"),
		check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "another affinity", pod: byAffinity("{key: zone, operator: Exists}", "{key: zone, operator: In, values: [a]}"),
		check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "mirror of a static pod", pod: mirror(""), untouched: true},
	{name: "mirror of a static pod, bad annotation", pod: mirror(", locksidecar.io/profile: nonsense"), untouched: true},

	{name: "profile with a Secret", pod: plain(", locksidecar.io/profile: billing"), check: func(t *testing.T, p *corev1.Pod) {
		s := sidecar(t, p)
		i := slices.IndexFunc(s.Env, func(e corev1.EnvVar) bool { return e.Name == "LOCKSIDECAR_STORE" })
		want := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "mysql"}, Key: "dsn"}}
		if i < 0 || !cmp.Equal(s.Env[i].ValueFrom, want) {
			t.Errorf("the store is not from the Secret: %v", s.Env)
		}
		if s.ReadinessProbe != nil {
			t.Error("readiness is never, and there is a probe")
		}
	}},
	{name: "profile with files", pod: plain(", locksidecar.io/profile: files"), check: func(t *testing.T, p *corev1.Pod) {
		s := sidecar(t, p)
		wantEnv(t, s, "LOCKSIDECAR_STORE_PASSWORD_FILE", "/run/secrets/locksidecar/pw")
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "redis" }) {
			t.Error("no volume with the files")
		}
		if len(s.Ports) > 0 || s.ReadinessProbe.Exec == nil {
			t.Error("no port is wanted, and there is one")
		}
		if slices.ContainsFunc(p.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "locksidecar-files" }) {
			t.Error("the app sees the sidecar's files")
		}
	}},
	{name: "everything overridden", pod: plain(`, locksidecar.io/ttl: 1m30s, locksidecar.io/namespace: a-b.c, locksidecar.io/log-level: debug,
		locksidecar.io/cpu-request: 50m, locksidecar.io/cpu-limit: "1.5", locksidecar.io/memory-request: 48Mi, locksidecar.io/memory-limit: 1Gi`), check: func(t *testing.T, p *corev1.Pod) {
		s := sidecar(t, p)
		wantEnv(t, s, "LOCKSIDECAR_TTL", "1m30s")
		wantEnv(t, s, "LOCKSIDECAR_NAMESPACE", "a-b.c")
		wantEnv(t, s, "LOCKSIDECAR_LOG_LEVEL", "debug")
		r := s.Resources
		if got := []string{r.Requests.Cpu().String(), r.Limits.Cpu().String(), r.Requests.Memory().String(), r.Limits.Memory().String()}; !slices.Equal(got, []string{"50m", "1500m", "48Mi", "1Gi"}) {
			t.Errorf("resources %v", got)
		}
	}},
	{name: "empty overrides", pod: plain(`, locksidecar.io/ttl: "", locksidecar.io/profile: "", locksidecar.io/cpu-request: ""`),
		check: func(t *testing.T, p *corev1.Pod) { wantEnv(t, sidecar(t, p), "LOCKSIDECAR_TTL", "10s") }},
	{name: "unknown profile", pod: plain(", locksidecar.io/profile: nonsense"), refused: "names 'nonsense', which is not a profile; there are: billing, default, files, reserved"},
	{name: "bad ttl", pod: plain(", locksidecar.io/ttl: soon"), refused: "the annotation locksidecar.io/ttl is 'soon': must be a duration from 500ms to 10m, such as 10s"},
	{name: "ttl too short", pod: plain(", locksidecar.io/ttl: 499ms"), refused: "locksidecar.io/ttl is '499ms'"},
	{name: "ttl too long", pod: plain(", locksidecar.io/ttl: 11m"), refused: "locksidecar.io/ttl is '11m'"},
	{name: "ttl beyond what CEL can hold", pod: plain(", locksidecar.io/ttl: 9999999999m"), refused: "the annotation locksidecar.io/ttl is '9999999999m': must be a duration from 500ms to 10m, such as 10s"},
	{name: "ttl of many parts", pod: plain(", locksidecar.io/ttl: " + strings.Repeat("999999m", 200)), refused: "must be a duration from 500ms to 10m, such as 10s"},
	{name: "bad namespace", pod: plain(`, locksidecar.io/namespace: "$(SECRET)"`), refused: "locksidecar.io/namespace is '$(SECRET)'"},
	{name: "bad log level", pod: plain(", locksidecar.io/log-level: loud"), refused: "must be trace, debug, info, warn, error or off"},
	{name: "bad CPU", pod: plain(", locksidecar.io/cpu-limit: much"), refused: "locksidecar.io/cpu-limit is 'much': must be a quantity of CPU"},
	{name: "bad memory", pod: plain(", locksidecar.io/memory-request: 1GB"), refused: "locksidecar.io/memory-request is '1GB': must be a quantity of memory"},

	{name: "as a label", pod: `{labels: {locksidecar.io/inject: "true"}, spec: {containers: [{name: app, image: app}]}}`,
		refused: "the pod has a label locksidecar.io/inject, which has no effect: it must be an annotation"},
	{name: "as a label to stay out", namespace: "locks-opted-in", pod: `{labels: {locksidecar.io/inject: "false"}, spec: {containers: [{name: app, image: app}]}}`,
		refused: "it must be an annotation"},
	{name: "as a label too", pod: `{annotations: {locksidecar.io/inject: "true"}, labels: {locksidecar.io/inject: "true"}, spec: {containers: [{name: app, image: app}]}}`,
		check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "as a label in an excluded namespace", namespace: "kube-system", pod: `{labels: {locksidecar.io/inject: "true"}, spec: {containers: [{name: app, image: app}]}}`, untouched: true},

	{name: "several lines", pod: plain(`, locksidecar.io/ttl: "10s\n"`), refused: "the annotation locksidecar.io/ttl is '10s ': must be a duration"},
	{name: "lines of Windows", pod: plain(`, locksidecar.io/ttl: "10s\r\nfor ever"`), refused: "the annotation locksidecar.io/ttl is '10s  for ever': must be a duration"},
	{name: "a long value", pod: plain(", locksidecar.io/log-level: " + strings.Repeat("x", 6000)), refused: "locksidecar.io/log-level is '" + strings.Repeat("x", 100) + "…': must be trace"},
	{name: "a long profile", pod: plain(", locksidecar.io/profile: " + strings.Repeat("x", 6000)), refused: "names '" + strings.Repeat("x", 100) + "…', which is not a profile"},

	{name: "a profile of other namespaces", pod: plain(", locksidecar.io/profile: reserved"), refused: "pods of namespace locks-plain may not use the profile reserved"},
	{name: "a profile of the namespace", namespace: "locks-opted-in", pod: plain(", locksidecar.io/profile: reserved, locksidecar.io/ttl: 3s"), check: func(t *testing.T, p *corev1.Pod) {
		wantEnv(t, sidecar(t, p), "LOCKSIDECAR_STORE", "redis://other")
		wantEnv(t, sidecar(t, p), "LOCKSIDECAR_TTL", "3s")
	}},
	{name: "a profile of the namespace by the beginning of its name", namespace: "locks-team-a", pod: plain(", locksidecar.io/profile: reserved"), check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "an annotation that the profile keeps for itself", namespace: "locks-opted-in", pod: plain(", locksidecar.io/profile: reserved, locksidecar.io/namespace: billing"),
		refused: "the profile does not let pods use the annotation locksidecar.io/namespace"},

	{name: "a store's own pod", namespace: "locks-opted-in", pod: `{labels: {app: redis}, spec: {containers: [{name: redis, image: redis}]}}`, untouched: true},
	{name: "a store's own pod that asks", namespace: "locks-opted-in", pod: `{labels: {app: redis}, annotations: {locksidecar.io/inject: "true"}, spec: {containers: [{name: redis, image: redis}]}}`,
		check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},

	{name: "the sidecar's port is taken", pod: withPort("containerPort: 24737"), refused: "a container of the pod has the port that the sidecar takes"},
	{name: "the sidecar's port is taken by an init container", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {initContainers: [{name: init, image: app, ports: [{containerPort: 24737}]}], containers: [{name: app, image: app}]}}`,
		refused: "a container of the pod has the port that the sidecar takes"},
	{name: "the sidecar's port is taken, but not by TCP", pod: withPort("containerPort: 24737, protocol: UDP"), check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "another port", pod: `{annotations: {locksidecar.io/inject: "true", locksidecar.io/http-port: "9091"}, spec: {containers: [{name: app, image: app, ports: [{containerPort: 24737}]}]}}`, check: func(t *testing.T, p *corev1.Pod) {
		s := sidecar(t, p)
		wantEnv(t, s, "LOCKSIDECAR_HTTP_ADDR", ":9091")
		if s.Ports[0].ContainerPort != 9091 || s.ReadinessProbe.HTTPGet.Port.IntValue() != 9091 || s.ReadinessProbe.HTTPGet.Path != "/readyz?once=true" {
			t.Errorf("ports %v, readiness %v", s.Ports, s.ReadinessProbe)
		}
	}},
	{name: "no port", pod: plain(`, locksidecar.io/http-port: "0"`), check: func(t *testing.T, p *corev1.Pod) {
		if s := sidecar(t, p); len(s.Ports) > 0 || s.ReadinessProbe.Exec == nil {
			t.Error("it has a port")
		}
	}},
	{name: "bad port", pod: plain(`, locksidecar.io/http-port: "65536"`), refused: "locksidecar.io/http-port is '65536': must be a port, or 0 for none"},

	{name: "resources of the pod as a whole", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {resources: {requests: {cpu: 100m}, limits: {cpu: 100m}}, containers: [{name: app, image: app, resources: {requests: {cpu: 100m}}}]}}`,
		check: func(t *testing.T, p *corev1.Pod) {
			r := sidecar(t, p).Resources
			if _, has := r.Requests["cpu"]; has || r.Requests.Memory().String() != "32Mi" || r.Limits.Memory().String() != "256Mi" {
				t.Errorf("CPU has no room for the sidecar, memory has: %v", r)
			}
		}},
	{name: "resources of the pod as a whole, and an annotation", pod: `{annotations: {locksidecar.io/inject: "true", locksidecar.io/memory-limit: 64Mi}, spec: {resources: {limits: {cpu: 1, memory: 1Gi}}, containers: [{name: app, image: app}]}}`,
		check: func(t *testing.T, p *corev1.Pod) {
			s := sidecar(t, p)
			if _, has := s.Resources.Limits["cpu"]; has || s.Resources.Limits.Memory().String() != "64Mi" {
				t.Errorf("resources %v", s.Resources)
			}
			wantEnv(t, s, "GOMEMLIMIT", "57MiB")
		}},
	{name: "memory of the pod as a whole", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {resources: {limits: {memory: 1Gi}}, containers: [{name: app, image: app}]}}`,
		check: func(t *testing.T, p *corev1.Pod) {
			s := sidecar(t, p)
			_, requests := s.Resources.Requests["memory"]
			_, limits := s.Resources.Limits["memory"]
			if requests || limits || s.Resources.Requests.Cpu().String() != "10m" {
				t.Errorf("resources %v", s.Resources)
			}
			wantEnv(t, s, "GOMEMLIMIT", "230MiB")
		}},

	{name: "several containers, init containers, own lists", pod: `
annotations: {locksidecar.io/inject: "true", own: "1"}
labels: {app: a}
spec:
  restartPolicy: Never
  volumes: [{name: v, emptyDir: {}}]
  initContainers: [{name: first, image: app, volumeMounts: [{name: v, mountPath: /v}]}, {name: second, image: app}]
  containers:
  - {name: a, image: app, env: [{name: A, value: a}, {name: A, value: again}], volumeMounts: [{name: v, mountPath: /v}]}
  - {name: b, image: app}
`, check: func(t *testing.T, p *corev1.Pod) {
		sidecar(t, p)
		if len(p.Spec.InitContainers) != 3 || p.Spec.InitContainers[1].Name != "first" {
			t.Error("init containers are in another order")
		}
		if e := p.Spec.Containers[0].Env; len(e) != 3 || e[1].Value != "again" {
			t.Errorf("the app's variables became %v", e)
		}
		if p.Annotations["own"] != "1" || p.Labels["app"] != "a" || p.Spec.RestartPolicy != corev1.RestartPolicyNever {
			t.Error("the pod lost something of its own")
		}
	}},
	{name: "own volumes that keep no node", pod: plain(", cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes: 'a,b'"), check: func(t *testing.T, p *corev1.Pod) {
		if got := p.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]; got != "a,b,locksidecar" {
			t.Errorf("volumes that keep no node: %s", got)
		}
	}},
	{name: "own socket variable", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {containers: [{name: app, image: app, env: [{name: LOCKSIDECAR_SOCKET, value: /else}]}]}}`,
		check: func(t *testing.T, p *corev1.Pod) {
			if e := p.Spec.Containers[0].Env; len(e) != 1 || e[0].Value != "/else" {
				t.Errorf("the app's variables became %v", e)
			}
		}},
	{name: "own volume and mount of that name", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {volumes: [{name: locksidecar, emptyDir: {}}], containers: [{name: app, image: app, volumeMounts: [{name: locksidecar, mountPath: /run/locksidecar, readOnly: true}]}]}}`,
		check: func(t *testing.T, p *corev1.Pod) {
			sidecar(t, p)
			if n := len(slices.DeleteFunc(slices.Clone(p.Spec.Volumes), func(v corev1.Volume) bool { return v.Name != "locksidecar" })); n != 1 {
				t.Errorf("%d volumes locksidecar", n)
			}
		}},
	{name: "volume of another kind", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {volumes: [{name: locksidecar, hostPath: {path: /tmp}}], containers: [{name: app, image: app}]}}`,
		refused: "the pod has a volume called locksidecar that is not an emptyDir"},
	{name: "another volume at the place", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {volumes: [{name: v, emptyDir: {}}], containers: [{name: app, image: app, volumeMounts: [{name: v, mountPath: /run/locksidecar}]}]}}`,
		refused: "a container of the pod has another volume at or in /run/locksidecar"},
	{name: "another volume at the place, with a slash", pod: mounting("{name: v, mountPath: /run/locksidecar/}"),
		refused: "a container of the pod has another volume at or in /run/locksidecar"},
	{name: "another volume at the place by its other name", pod: mounting("{name: v, mountPath: /var/run/locksidecar}"),
		refused: "a container of the pod has another volume at or in /run/locksidecar"},
	{name: "another volume in the place", pod: mounting("{name: v, mountPath: /run//locksidecar/locksidecar.sock}"),
		refused: "a container of the pod has another volume at or in /run/locksidecar"},
	{name: "a folder of the volume", pod: mounting("{name: locksidecar, mountPath: /run/locksidecar, subPath: a}"),
		refused: "leave subPath out"},
	{name: "a folder of the volume by a variable", pod: mounting("{name: locksidecar, mountPath: /run/locksidecar/, subPathExpr: $(A)}"),
		refused: "leave subPath out"},
	{name: "volumes beside the place", pod: mounting("{name: v, mountPath: /run/locksidecars}, {name: v, mountPath: /srv/run/locksidecar, subPath: a}, {name: locksidecar, mountPath: /own, subPath: a}"),
		check: func(t *testing.T, p *corev1.Pod) { sidecar(t, p) }},
	{name: "own mount with a slash", pod: mounting("{name: locksidecar, mountPath: /run/locksidecar/, readOnly: true}"), check: func(t *testing.T, p *corev1.Pod) {
		n := 0
		for _, m := range p.Spec.Containers[0].VolumeMounts {
			if m.Name == "locksidecar" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the app has the folder %d times: %v", n, p.Spec.Containers[0].VolumeMounts)
		}
	}},
	{name: "own sidecar", namespace: "locks-opted-in", untouched: true,
		pod: `{spec: {initContainers: [{name: locksidecar, image: own, restartPolicy: Always}], containers: [{name: app, image: app}]}}`},
	{name: "own container of that name", namespace: "locks-opted-in", untouched: true,
		pod: `{spec: {containers: [{name: app, image: app}, {name: locksidecar, image: own}]}}`},
	{name: "host network", pod: `{annotations: {locksidecar.io/inject: "true"}, spec: {hostNetwork: true, containers: [{name: app, image: app}]}}`, check: func(t *testing.T, p *corev1.Pod) {
		s := sidecar(t, p)
		if len(s.Ports) > 0 || s.ReadinessProbe.Exec == nil || slices.ContainsFunc(s.Env, func(e corev1.EnvVar) bool { return e.Name == "LOCKSIDECAR_HTTP_ADDR" }) {
			t.Error("it takes a port of the host")
		}
	}},
}

// parsePod makes a pod of a case's text.
func parsePod(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	v := parse(t, text)
	return decode[corev1.Pod](t, object{
		"apiVersion": "v1", "kind": "Pod", "spec": v["spec"],
		"metadata": map[string]any{"name": "pod", "annotations": v["annotations"], "labels": v["labels"]},
	})
}

// sidecar is the sidecar of a pod that must have it, in full.
func sidecar(t testing.TB, p *corev1.Pod) *corev1.Container {
	t.Helper()
	if len(p.Spec.InitContainers) == 0 || p.Spec.InitContainers[0].Name != "locksidecar" {
		t.Fatal("the sidecar is not the first init container")
	}
	if p.Annotations["locksidecar.io/status"] != "injected by locksidecar" || p.Labels["locksidecar.io/injected"] != "true" {
		t.Error("the pod is not marked")
	}
	if v := p.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]; !slices.Contains(strings.Split(v, ","), "locksidecar") {
		t.Errorf("the socket's volume keeps the node: %q", v)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		wantEnv(t, &c, "LOCKSIDECAR_SOCKET", socket)
		n := 0
		for _, m := range c.VolumeMounts {
			if m.MountPath == directory && m.Name == "locksidecar" {
				n++
				if own := c.Name == "locksidecar"; m.ReadOnly == own {
					t.Errorf("%s has the socket's folder read-only: %t", c.Name, m.ReadOnly) // an app could delete the socket
				}
			}
		}
		if n != 1 {
			t.Errorf("%s has the socket's folder %d times", c.Name, n)
		}
	}
	if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "locksidecar" && v.EmptyDir != nil }) {
		t.Error("the pod has no volume for the socket")
	}
	return &p.Spec.InitContainers[0]
}

func wantEnv(t testing.TB, c *corev1.Container, name, value string) {
	t.Helper()
	var got []string
	for _, e := range c.Env {
		if e.Name == name {
			got = append(got, e.Value)
		}
	}
	if !slices.Equal(got, []string{value}) {
		t.Errorf("%s of %s is %q, want %q", name, c.Name, got, value)
	}
}

// run is one case, on whatever admits pods.
func (c admissionCase) run(t *testing.T, admit func(namespace string, pod *corev1.Pod) (*corev1.Pod, string, error)) {
	namespace := c.namespace
	if namespace == "" {
		namespace = "locks-plain"
	}
	before := parsePod(t, c.pod)
	after, warnings, err := admit(namespace, before)
	switch {
	case c.refused != "":
		if err == nil || !strings.Contains(err.Error(), c.refused) {
			t.Errorf("error %v, want one with %q", err, c.refused)
		}
		return
	case err != nil:
		t.Fatal(err)
	case warnings != "":
		t.Errorf("warnings: %s", warnings)
	}
	if c.untouched {
		if d := cmp.Diff(marks(before), marks(after)); d != "" {
			t.Errorf("the pod was touched (-before +after):\n%s", d)
		}
		return
	}
	c.check(t, after)
	// Idempotent: a copy of the pod, such as kubectl debug makes, stays as it is.
	again, _, err := admit(namespace, after)
	if err != nil {
		t.Fatalf("a copy of the pod: %v", err)
	}
	if d := cmp.Diff(marks(after), marks(again)); d != "" {
		t.Errorf("a copy of the pod was touched (-before +after):\n%s", d)
	}
}

// marks is what a policy of ours could have changed.
func marks(p *corev1.Pod) any {
	type container struct {
		Name   string
		Env    []corev1.EnvVar
		Mounts []string
	}
	var all []container
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		one := container{Name: c.Name, Env: c.Env}
		for _, m := range c.VolumeMounts {
			if !strings.HasPrefix(m.Name, "kube-api-access") { // a server adds it
				one.Mounts = append(one.Mounts, m.Name+" "+m.MountPath)
			}
		}
		all = append(all, one)
	}
	var volumes []string
	for _, v := range p.Spec.Volumes {
		if !strings.HasPrefix(v.Name, "kube-api-access") {
			volumes = append(volumes, v.Name)
		}
	}
	return map[string]any{"containers": all, "volumes": volumes, "annotations": p.Annotations, "labels": p.Labels}
}

// TestAdmission takes pods through the policies without a server.
func TestAdmission(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, theValues), "v1.36"))
	all := namespaces()
	for _, c := range admissionCases {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, func(namespace string, pod *corev1.Pod) (*corev1.Pod, string, error) {
				return e.admit(t.Context(), all[namespace], pod)
			})
		})
	}
}

// TestIgnore: where failures are to be ignored, a pod that cannot have what it
// asks for starts without it, and its maker is told.
func TestIgnore(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, ignoring), "v1.36"))
	for _, c := range []struct {
		annotation, warning string
		sidecar             bool
	}{
		{", locksidecar.io/profile: nonsense", "names 'nonsense'", false},
		{", locksidecar.io/ttl: soon, locksidecar.io/cpu-limit: much", "locksidecar.io/ttl is 'soon'", true},
	} {
		pod, warnings, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain(c.annotation)))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(warnings, c.warning) {
			t.Errorf("warnings %q, want %q", warnings, c.warning)
		}
		if c.sidecar {
			wantEnv(t, sidecar(t, pod), "LOCKSIDECAR_TTL", "10s")
		} else if len(pod.Spec.InitContainers) > 0 {
			t.Error("there is a sidecar of an unknown profile")
		}
	}
}
