package charttest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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
		{"equal", "", equal, limits, [4]string{"100m", "100m", "128Mi", "128Mi"}},
		{"an init container below", "", below, equal, [4]string{"10m", "0", "32Mi", "128Mi"}},
		{"a container below", "", equal, below, [4]string{"10m", "0", "32Mi", "128Mi"}},
		{"no CPU", "", equal, noCPU, [4]string{"10m", "0", "32Mi", "128Mi"}},
		{"nothing", "", nothing, nothing, [4]string{"10m", "0", "32Mi", "128Mi"}},
		{"a limit of the profile", ", locksidecar.io/profile: limited", equal, equal, [4]string{"300m", "300m", "128Mi", "128Mi"}},
		{"no memory limit", ", locksidecar.io/profile: unlimited", equal, equal, [4]string{"100m", "100m", "32Mi", "32Mi"}},
		{"not wanted", ", locksidecar.io/profile: burstable", equal, equal, [4]string{"10m", "0", "128Mi", "128Mi"}},
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
