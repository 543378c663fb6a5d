package charttest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestSameSidecar: the policy's expression and the templates for app charts make
// the same container and volumes of the same values.
func TestSameSidecar(t *testing.T) {
	v := `
profiles:
  default: {}
  secret: {store: {secret: {name: mysql, key: dsn}}}
  bare: {httpPort: 0, readiness: never, runAsUser: 0, resources: {requests: {cpu: "", memory: ""}, limits: {memory: ""}}}
  always: {readiness: always}
  from: {env: {A: {secretKeyRef: {name: s, key: k}}, B: {configMapKeyRef: {name: c, key: k.k}}, C: {fieldRef: {fieldPath: "metadata.labels['a']"}}, D: plain}}
  default-store: {store: {url: "zk://z1,z2"}, adminUids: [1, 2]}
  always-bare: {httpPort: 0, readiness: always}
  every-key:
    ` + indent(everyKey, 4)
	const guaranteed = "resources: {limits: {cpu: 1, memory: 1Gi}}"
	e := newEvaluator(t, objects(t, theChart(t), parse(t, v), "v1.36"))
	for _, c := range []struct{ name, annotations, argument, spec, app string }{
		{"as it is", "", ``, "", ""},
		{"Secret", ", locksidecar.io/profile: secret", `"profile" "secret"`, "", ""},
		{"bare", ", locksidecar.io/profile: bare", `"profile" "bare"`, "", ""},
		{"variables from elsewhere", ", locksidecar.io/profile: from", `"profile" "from"`, "", ""},
		{"another store", ", locksidecar.io/profile: default-store", `"profile" "default-store"`, "", ""},
		{"ready always", ", locksidecar.io/profile: always", `"profile" "always"`, "", ""},
		{"ready always, no port", ", locksidecar.io/profile: always-bare", `"profile" "always-bare"`, "", ""},
		{"every key", ", locksidecar.io/profile: every-key", `"profile" "every-key"`, "", ""},
		{"overrides", ", locksidecar.io/ttl: 3s, locksidecar.io/namespace: shop, locksidecar.io/log-level: 'off', locksidecar.io/cpu-request: 5m, locksidecar.io/cpu-limit: 50m, locksidecar.io/memory-request: 20Mi, locksidecar.io/memory-limit: 99Mi",
			`"ttl" "3s" "namespace" "shop" "log-level" "off" "cpu-request" "5m" "cpu-limit" "50m" "memory-request" "20Mi" "memory-limit" "99Mi"`, "", ""},
		{"another port", ", locksidecar.io/http-port: '9091'", `"http-port" 9091`, "", ""},
		{"no port", ", locksidecar.io/http-port: '0'", `"http-port" "0"`, "", ""},
		{"Guaranteed", "", `"guaranteed" true`, "", guaranteed},
		{"Guaranteed, bare", ", locksidecar.io/profile: bare", `"guaranteed" true "profile" "bare"`, "", guaranteed},
		{"Guaranteed, every key", ", locksidecar.io/profile: every-key", `"guaranteed" true "profile" "every-key"`, "", guaranteed},
		{"host network", "", `"hostNetwork" true`, "hostNetwork: true, ", ""},
		{"host network, every key", ", locksidecar.io/profile: every-key", `"hostNetwork" true "profile" "every-key"`, "hostNetwork: true, ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := `{annotations: {locksidecar.io/inject: "true"` + c.annotations + `}, spec: {` + c.spec + `containers: [{name: app, image: app, ` + c.app + `}]}}`
			injected, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, pod))
			if err != nil {
				t.Fatal(err)
			}
			included := includePod(t, v, c.argument)
			sameQuantity := cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
			noNil := cmp.Transformer("", func(l corev1.ResourceList) map[corev1.ResourceName]resource.Quantity {
				out := map[corev1.ResourceName]resource.Quantity{}
				for k, q := range l {
					out[k] = q
				}
				return out
			})
			byName := cmpopts.SortSlices(func(a, b corev1.EnvVar) bool { return a.Name < b.Name })
			if first := sidecar(t, injected).Env[0].Name; first != "POD_NAME" { // others refer to it
				t.Errorf("the first variable is %s", first)
			}
			if d := cmp.Diff(included.Spec, corev1.PodSpec{InitContainers: injected.Spec.InitContainers, Volumes: injected.Spec.Volumes, Containers: []corev1.Container{{
				Name: "app", Env: injected.Spec.Containers[0].Env, VolumeMounts: injected.Spec.Containers[0].VolumeMounts,
			}}}, sameQuantity, noNil, byName); d != "" {
				t.Errorf("templates and policy differ (-template +policy):\n%s", d)
			}
		})
	}
}

// includePod is a pod of an app's chart that includes the templates.
func includePod(t *testing.T, v, argument string) *corev1.Pod {
	t.Helper()
	app := loadExample(t)
	app.Templates = []*chart.File{{Name: "templates/pod.yaml", Data: fmt.Appendf(nil, `
{{- $a := dict "chart" .Subcharts.locksidecar %s }}
spec:
  initContainers:
  - {{- include "locksidecar.container" $a | nindent 4 }}
  containers:
  - name: app
    env: {{- include "locksidecar.env" $a | nindent 4 }}
    volumeMounts: {{- include "locksidecar.volumeMount" $a | nindent 4 }}
  volumes: {{- include "locksidecar.volume" $a | nindent 4 }}
`, argument)}}
	own := chartutil.CoalesceTables(parse(t, v), parse(t, required))
	own["injection"] = values{"enabled": false}
	app.Values["locksidecar"] = own
	files, err := render(app, values{}, "v1.29")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(files["app/templates/pod.yaml"]), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}
