package charttest

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestGuaranteedStaysGuaranteed: a pod that Kubernetes counts as Guaranteed, and may so
// give CPUs of its own, is that with the sidecar too. Others keep the usual resources.
func TestGuaranteedStaysGuaranteed(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, `
profiles:
  default: {}
  limited: {resources: {limits: {cpu: 300m}}}
  unlimited: {resources: {limits: {memory: ""}}}
  burstable: {resources: {guaranteedCpu: ""}}
`), "v1.36"))
	const (
		equal   = `{requests: {cpu: 2, memory: 1Gi}, limits: {cpu: "2", memory: 1024Mi}}`
		limits  = `{limits: {cpu: 2, memory: 1Gi}}`
		below   = `{requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 2, memory: 1Gi}}`
		noCPU   = `{requests: {memory: 1Gi}, limits: {memory: 1Gi}}`
		nothing = `{}`
	)
	for _, c := range []struct {
		name, annotations, first, second string
		want                             [4]string // requests and limits of CPU and memory
	}{
		{"equal", "", equal, limits, [4]string{"100m", "100m", "256Mi", "256Mi"}},
		{"an init container below", "", below, equal, [4]string{"10m", "0", "32Mi", "256Mi"}},
		{"a container below", "", equal, below, [4]string{"10m", "0", "32Mi", "256Mi"}},
		{"no CPU", "", equal, noCPU, [4]string{"10m", "0", "32Mi", "256Mi"}},
		{"nothing", "", nothing, nothing, [4]string{"10m", "0", "32Mi", "256Mi"}},
		{"a limit of the profile", ", locksidecar.io/profile: limited", equal, equal, [4]string{"300m", "300m", "256Mi", "256Mi"}},
		{"no memory limit", ", locksidecar.io/profile: unlimited", equal, equal, [4]string{"100m", "100m", "32Mi", "32Mi"}},
		{"not wanted", ", locksidecar.io/profile: burstable", equal, equal, [4]string{"10m", "0", "256Mi", "256Mi"}},
		{"annotations", ", locksidecar.io/cpu-limit: 200m, locksidecar.io/memory-limit: 64Mi", equal, equal, [4]string{"200m", "200m", "64Mi", "64Mi"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, `{annotations: {locksidecar.io/inject: "true"`+c.annotations+`},
				spec: {initContainers: [{name: init, image: app, resources: `+c.first+`}], containers: [{name: app, image: app, resources: `+c.second+`}]}}`))
			if err != nil {
				t.Fatal(err)
			}
			requests, limits := resources(sidecar(t, pod))
			if got := [4]string{requests.Cpu().String(), limits.Cpu().String(), requests.Memory().String(), limits.Memory().String()}; got != c.want {
				t.Errorf("requests and limits %v, want %v", got, c.want)
			}
		})
	}
}

func resources(c *corev1.Container) (requests, limits corev1.ResourceList) {
	return c.Resources.Requests, c.Resources.Limits
}

// TestGoKnowsTheMemoryLimit: Go's garbage collector works harder before the kernel kills
// the sidecar, whatever the limit comes from.
func TestGoKnowsTheMemoryLimit(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, `
profiles:
  default: {}
  small: {resources: {limits: {memory: 64M}}}
  plain: {resources: {limits: {memory: 104857600}}}
  unlimited: {resources: {limits: {memory: ""}}}
  own: {env: {GOMEMLIMIT: 50MiB}}
`), "v1.36"))
	for _, c := range []struct{ annotations, want string }{
		{"", "230MiB"},
		{", locksidecar.io/memory-limit: 0.5Gi", "460MiB"},
		{", locksidecar.io/profile: small", "54MiB"},
		{", locksidecar.io/profile: plain", "90MiB"},
		{", locksidecar.io/profile: unlimited", ""},
		{", locksidecar.io/profile: own", "50MiB"},
	} {
		pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain(c.annotations)))
		if err != nil {
			t.Fatal(err)
		}
		s := sidecar(t, pod)
		if c.want != "" {
			wantEnv(t, s, "GOMEMLIMIT", c.want)
		} else if slices.ContainsFunc(s.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" }) {
			t.Errorf("%s: there is no limit, and Go has one", c.annotations)
		}
	}
}

// TestLimitsFitEachOther: as many connections, locks and requests in flight as the sidecar takes by
// default fit into the memory that it has by default. The sizes are those of docs/operations.md.
func TestLimitsFitEachOther(t *testing.T) {
	const (
		idle          = 27 << 20
		busy          = 16 << 20
		perConnection = 37 << 10
		perLock       = 1127
		perRequest    = 13 << 10 // in flight, while the store is silent
	)
	defaults, _ := theChart(t).Values["profileDefaults"].(map[string]any)
	connections, _ := defaults["maxConnections"].(float64)
	locks, _ := defaults["maxHoldsPerUid"].(float64)
	requests, _ := defaults["maxInFlight"].(float64)
	requests += requests / 4 // what lets go
	of, _ := defaults["resources"].(map[string]any)
	limits, _ := of["limits"].(map[string]any)
	limit := resource.MustParse(fmt.Sprint(limits["memory"]))
	need := idle + busy + perConnection*int64(connections) + perLock*int64(locks) + perRequest*int64(requests)
	if connections == 0 || locks == 0 || requests == 0 || need > limit.Value()*9/10 {
		t.Errorf("%v connections, %v locks and %v requests in flight take %d MiB, the limit is %s", connections, locks, requests, need>>20, &limit)
	}
}
