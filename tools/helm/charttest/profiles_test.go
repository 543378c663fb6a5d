package charttest

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
)

// manyProfiles are profiles as a platform for many teams has them.
func manyProfiles(n int) values {
	profiles := values{"default": values{}}
	for i := range n {
		team := fmt.Sprintf("team-%d", i)
		profiles[team] = values{"namespace": team, "onlyIn": []any{team}, "store": values{"url": "redis://redis." + team + ".svc.cluster.local:6379"}}
	}
	return values{"profiles": profiles}
}

// TestManyProfiles: there is room for hundreds of profiles, and each is what it says.
func TestManyProfiles(t *testing.T) {
	const n = 400
	all := objects(t, theChart(t), manyProfiles(n), "v1.36")
	for _, o := range all {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 500_000 { // of the 1.5 MiB that etcd takes
			t.Errorf("%s %s has %d bytes", o.kind(), o.name(), len(text))
		}
	}
	e := newEvaluator(t, all)
	ns := namespaces()["locks-plain"]
	ns.Name = "team-399"
	for _, profile := range []string{"team-399", "default"} {
		pod, _, err := e.admit(t.Context(), ns, parsePod(t, plain(", locksidecar.io/profile: "+profile)))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"team-399": "redis://redis.team-399.svc.cluster.local:6379", "default": "redis://redis:6379"}[profile]
		wantEnv(t, sidecar(t, pod), "LOCKSIDECAR_STORE", want)
	}
	// All names would make a message that the server does not show.
	if _, _, err := e.admit(t.Context(), ns, parsePod(t, plain(", locksidecar.io/profile: nonsense"))); err == nil || !strings.Contains(err.Error(), "names 'nonsense', which is not a profile; there are: default, team-0, ") || !strings.HasSuffix(err.Error(), fmt.Sprintf("… (%d in all)", n+1)) {
		t.Errorf("a profile that is none: %v", err)
	}
}

// TestShards: a profile with several stores names them all.
func TestShards(t *testing.T) {
	some := `{profiles: {default: {}, sharded: {store: {url: ["redis://eu-1?shard=eu-1", "mysql://eu-2/locks?shard=eu-2"]}}}}`
	e := newEvaluator(t, objects(t, theChart(t), parse(t, some), "v1.36"))
	pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain(", locksidecar.io/profile: sharded")))
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, sidecar(t, pod), "LOCKSIDECAR_STORE", "redis://eu-1?shard=eu-1 mysql://eu-2/locks?shard=eu-2")
	for _, url := range []string{`["redis://eu-1", "embedded:"]`, `["redis://eu-1 redis://eu-2"]`, `["redis://eu-1", "redis://eu-1"]`, `[]`, `["redis://eu-1", ""]`, `"redis://eu-1 redis://eu-2"`} {
		if _, err := render(theChart(t), parse(t, `{profiles: {default: {store: {url: `+url+`}}}}`), "v1.36"); err == nil || !strings.Contains(err.Error(), "/profiles/default/store/url") {
			t.Errorf("%s: error %v", url, err)
		}
	}
}

// TestTooManyProfiles: what an API server would refuse half-way through an upgrade is
// refused while rendering.
func TestTooManyProfiles(t *testing.T) {
	if _, err := render(theChart(t), manyProfiles(900), "v1.36"); err == nil || !strings.Contains(err.Error(), "where the API server takes no expression of more than 100000") {
		t.Errorf("error %v", err)
	}
}

// TestForbiddenProfile: where failures are to be ignored, a pod that may not use a profile
// still does not get it.
func TestForbiddenProfile(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, ignoring), "v1.36"))
	pod, warnings, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain(", locksidecar.io/profile: reserved")))
	if err != nil || len(pod.Spec.InitContainers) > 0 || !strings.Contains(warnings, "may not use the profile reserved") {
		t.Errorf("%v, warnings %q, %d init containers", err, warnings, len(pod.Spec.InitContainers))
	}
	pod, warnings, err = e.admit(t.Context(), namespaces()["locks-opted-in"], parsePod(t, plain(", locksidecar.io/profile: reserved, locksidecar.io/namespace: other")))
	if err != nil || !strings.Contains(warnings, "annotation locksidecar.io/namespace") {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	for _, v := range sidecar(t, pod).Env {
		if v.Name == "LOCKSIDECAR_NAMESPACE" && v.Value == "other" {
			t.Error("an annotation that the profile does not let pods use has had its way")
		}
	}
}
