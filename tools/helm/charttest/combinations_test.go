package charttest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
)

// A combination is values that are rendered and held against the API of each
// version of Kubernetes.
type combination struct {
	name   string
	chart  func(testing.TB) *chart.Chart
	values string
	since  string   // oldest version that takes it
	kinds  []string // that must be there, "*" for the version's own
}

// theChart is the chart with what everybody has to set.
func theChart(t testing.TB) *chart.Chart {
	t.Helper()
	c := load(t, chartPlace)
	c.Values = chartutil.CoalesceTables(parse(t, required), c.Values)
	return c
}

const required = `{profileDefaults: {image: {repository: registry.example/locksidecar}, store: {url: "redis://redis:6379"}}}`

const everyKey = `
store: {url: "redis://app@redis:6379?tls-ca=/run/secrets/locksidecar/ca.crt", files: {secret: redis, password: password}}
ttl: 5s
namespace: shop
logLevel: debug
logFormat: text
socketMode: "0660"
allowUids: [1000, 2000]
allowGids: [1000]
adminUids: [0]
drain: 5s
lostGrace: 1s
maxSessions: 10
maxSessionsPerUid: 11
maxHolds: 20
maxHoldsPerUid: 21
maxDetachedPerUid: 22
maxWaiters: 30
maxConnections: 40
maxConnectionsPerUid: 41
maxWatchesPerUid: 51
maxMessageBytes: 6000
migrate: false
env: {OTEL_EXPORTER_OTLP_ENDPOINT: "http://otel:4317", OTEL_RESOURCE_ATTRIBUTES: "pod=$(POD_NAME),quote=\"'"}
httpPort: 9191
readiness: never
runAsUser: 1234
resources: {requests: {cpu: 0.25, memory: 64Mi}, limits: {cpu: 1500m, memory: 1G}}
image: {repository: registry.local:5000/locks, digest: "sha256:` + digest + `", pullPolicy: Always}
`

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func indent(text string, by int) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", by))
}

var policies = []string{"*MutatingAdmissionPolicy", "*MutatingAdmissionPolicyBinding", group + "/v1/ValidatingAdmissionPolicy", group + "/v1/ValidatingAdmissionPolicyBinding"}

var node = []string{"storage.k8s.io/v1/CSIDriver", "v1/ServiceAccount", "apps/v1/DaemonSet"}

var combinations = []combination{
	{name: "as it is", chart: theChart, since: "v1.34", kinds: policies},
	{name: "profiles", chart: theChart, since: "v1.34", kinds: policies, values: `
profiles:
  default: {store: {secret: {name: redis, key: uri}}}
  every-key:
    ` + indent(everyKey, 4) + `
  bare: {httpPort: 0, runAsUser: 0, resources: {requests: {cpu: "", memory: ""}, limits: {memory: ""}}}
`},
	{name: "every key as a default", chart: theChart, since: "v1.34", kinds: policies, values: `
profileDefaults:
  ` + indent(everyKey, 2)},
	{name: "other names, no exclusions, ignored failures", chart: theChart, since: "v1.34", kinds: policies, values: `
fullnameOverride: locks
commonLabels: {team: platform}
injection: {failurePolicy: Ignore, excludedNamespaces: []}
defaultProfile: other
profiles: {other: {}}
`},
	{name: "version by value", chart: theChart, since: "v1.36", kinds: policies, values: `{injection: {apiVersion: admissionregistration.k8s.io/v1}}`},
	{name: "no injection", chart: theChart, values: `{injection: {enabled: false}}`},
	{name: "monitoring", chart: theChart, kinds: []string{"monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule", "v1/ConfigMap"}, values: `
injection: {enabled: false}
podMonitor: {enabled: true, namespace: monitoring, labels: {release: prometheus}, interval: 15s, sampleLimit: 2000, metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: go_.*}]}
prometheusRule: {enabled: true, namespace: monitoring, labels: {release: prometheus}, alarmLabels: {team: platform}}
dashboard: {enabled: true, namespace: monitoring, annotations: {folder: Locks}}
`},
	{name: "monitoring as it is", chart: theChart, kinds: []string{"monitoring.coreos.com/v1/PodMonitor"}, values: `
{injection: {enabled: false}, podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}
`},
	{name: "one per node", chart: theChart, since: "v1.34", kinds: slices.Concat(policies, node), values: nodeValues},
	{name: "one per node, without injection", chart: theChart, kinds: node, values: `
mode: node
node:
  allow: ["*/*"]
  priorityClassName: ""
  nodeSelector: {}
  tolerations: []
  maxSurge: 10%
  kubeletFolder: /var/lib/k0s/kubelet
injection: {enabled: false}
`},
	{name: "the example", chart: loadExample, kinds: []string{"apps/v1/Deployment", "batch/v1/CronJob"}},
	{name: "the example with every key", chart: loadExample, kinds: []string{"apps/v1/Deployment", "batch/v1/CronJob"}, values: `
locksidecar:
  injection: {enabled: false}
  profiles:
    default:
      ` + indent(everyKey, 6)},
}

// TestCombinations holds every object that the charts render against the strict
// schemas of the versions of Kubernetes.
func TestCombinations(t *testing.T) {
	for cluster := range clusters {
		validate := schemas(t, cluster)
		for _, c := range combinations {
			if c.since > cluster {
				continue
			}
			t.Run(cluster+"/"+c.name, func(t *testing.T) {
				var kinds []string
				for _, o := range objects(t, c.chart(t), parse(t, c.values), cluster) {
					kinds = append(kinds, o.kind())
					if err := validate(o); err != nil {
						t.Errorf("%s %s: %v", o.kind(), o.name(), err)
					}
				}
				for _, want := range c.kinds {
					if kind, own := strings.CutPrefix(want, "*"); own {
						want = map[string]string{"v1.34": group + "/v1beta1/", "v1.36": group + "/v1/"}[cluster] + kind
					}
					if !slices.Contains(kinds, want) {
						t.Errorf("no %s among %s", want, kinds)
					}
				}
				if len(c.kinds) == 0 && len(kinds) > 0 {
					t.Errorf("%s where nothing is expected", kinds)
				}
			})
		}
	}
}

// TestSchemasAreStrict shows that the schemas can refuse.
func TestSchemasAreStrict(t *testing.T) {
	for cluster := range clusters {
		validate := schemas(t, cluster)
		for what, text := range map[string]string{
			"unknown field":  `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, dta: {}}`,
			"unknown deeper": `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, imge: b}]}}`,
			"wrong type":     `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, ports: [{containerPort: "1"}]}]}}`,
			"missing field":  `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}`,
			"unknown kind":   `{apiVersion: v1, kind: Pud, metadata: {name: a}}`,
			"custom":         `{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: a}, spec: {selector: {}, podMetricsEndpoints: [{prt: a}]}}`,
		} {
			if validate(object(parse(t, text))) == nil {
				t.Errorf("%s: %s is accepted: %s", cluster, what, text)
			}
		}
	}
}

// schemas gives what tools/helm/k8sschema wrote.
func schemas(t *testing.T, cluster string) func(object) error {
	t.Helper()
	file := folder + "/schemas/" + cluster + ".json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft7)
	const url = "file:///schemas.json"
	if err := compiler.AddResource(url, doc); err != nil {
		t.Fatal(err)
	}
	return func(o object) error {
		s, err := compiler.Compile(url + "#/kinds/" + strings.ReplaceAll(o.kind(), "/", "~1"))
		if err != nil {
			return err // such as a kind that this version lacks
		}
		return s.Validate(map[string]any(o))
	}
}
