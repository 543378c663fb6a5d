package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Most of what is tested here is said by the API server alone, in dry runs.

// resources of a pod's one container.
func resources(r object) func(spec object) {
	return func(spec object) { theApp(spec)["resources"] = r }
}

// theApp is the container of a pod's spec.
func theApp(spec object) object {
	all, ok := spec["containers"].([]object)
	if !ok || len(all) != 1 {
		panic("a pod of these tests has one container of its own")
	}
	return all[0]
}

// bare takes out of a pod what only Linux knows, and what a mirror pod may not have.
func bare(spec object) {
	delete(theApp(spec), "securityContext")
	delete(theApp(spec), "volumeMounts")
	delete(spec, "volumes")
}

// mounting adds a mount of a volume of the pod's own.
func mounting(mount object, volumes ...string) func(spec object) {
	return func(spec object) {
		mounts, _ := theApp(spec)["volumeMounts"].([]object)
		theApp(spec)["volumeMounts"] = append(slices.Clone(mounts), mount)
		all, _ := spec["volumes"].([]object)
		for _, v := range volumes {
			all = append(slices.Clone(all), object{"name": v, "emptyDir": object{}})
		}
		spec["volumes"] = all
	}
}

// wants are annotations that ask for the sidecar, and one more.
func wants(name, value string) map[string]string {
	a := injected("")
	a["locksidecar.io/"+name] = value
	return a
}

// Pods that the sidecar would be of no use to, or that are somebody else's, stay as they are.
func TestLeftAlone(t *testing.T) {
	osIs := func(operator string, values ...string) func(spec object) {
		return func(spec object) {
			bare(spec)
			spec["affinity"] = object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": []object{
				{"matchExpressions": []object{{"key": "kubernetes.io/os", "operator": operator, "values": values}}},
			}}}}
		}
	}
	mirror := wants("profile", "none")
	mirror["kubernetes.io/config.mirror"] = "0123456789abcdef"
	for _, c := range []struct {
		name   string
		pod    pod
		inject bool
	}{
		{name: "Windows", pod: pod{annotations: injected(""), change: func(spec object) {
			bare(spec)
			spec["os"] = object{"name": "windows"}
		}}},
		{name: "Windows by node selector", pod: pod{ns: optedNS, change: func(spec object) {
			bare(spec)
			spec["nodeSelector"] = object{"kubernetes.io/os": "windows"}
		}}},
		{name: "Windows by affinity", pod: pod{ns: optedNS, change: osIs("In", "windows")}},
		{name: "no Linux by affinity", pod: pod{annotations: injected(""), change: osIs("NotIn", "linux")}},
		{name: "Linux by affinity", pod: pod{annotations: injected(""), change: osIs("In", "linux", "windows")}, inject: true},
		{name: "mirror of a static pod", pod: pod{annotations: mirror, change: bare}},
		{name: "mirror of a static pod in a namespace that asks", pod: pod{ns: optedNS, annotations: map[string]string{"kubernetes.io/config.mirror": "0123456789abcdef"}, change: bare}},
		{name: "pod of the store in a namespace that asks", pod: pod{ns: optedNS, labels: map[string]string{"app": "store"}}},
		{name: "pod of the store that asks itself", pod: pod{ns: optedNS, labels: map[string]string{"app": "store"}, annotations: injected("")}, inject: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pod.name, c.pod.command = "left-alone", []string{"true"}
			out, err := c.pod.dryRun(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out, "LOCKSIDECAR") != c.inject || strings.Contains(out, "locksidecar.io/status") != c.inject {
				t.Errorf("injected: %t\n%s", !c.inject, out)
			}
		})
	}
}

// What a pod cannot have is refused in words that the API server shows in full.
func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 6000)
	opted := func(name, value string) map[string]string {
		return map[string]string{"locksidecar.io/profile": "guarded", "locksidecar.io/" + name: value}
	}
	for _, c := range []struct {
		name   string
		pod    pod
		reject string // empty: it is let in
	}{
		{name: "a long value", pod: pod{annotations: wants("log-level", long)}, reject: "the annotation locksidecar.io/log-level is '" + long[:100] + "…': must be trace"},
		{name: "a long profile", pod: pod{annotations: injected(long)}, reject: "names '" + long[:100] + "…', which is not a profile; " + profileNames},
		{name: "several lines", pod: pod{annotations: wants("ttl", "10s\n\r\nfor ever")}, reject: "the annotation locksidecar.io/ttl is '10s   for ever': must be a duration"},
		{name: "more than CEL can count", pod: pod{annotations: wants("ttl", "9999999999m")}, reject: "the annotation locksidecar.io/ttl is '9999999999m': must be a duration from 500ms to 10m"},
		{name: "as a label", pod: pod{labels: map[string]string{"locksidecar.io/inject": "true"}}, reject: "the pod has a label locksidecar.io/inject, which has no effect: it must be an annotation"},

		{name: "a profile of another namespace", pod: pod{annotations: injected("guarded")}, reject: "pods of namespace " + appsNS + " may not use the profile guarded"},
		{name: "a profile of the namespace", pod: pod{ns: optedNS, annotations: opted("ttl", "3s")}},
		{name: "what its profile keeps for itself", pod: pod{ns: optedNS, annotations: opted("namespace", "others")}, reject: "the profile does not let pods use the annotation locksidecar.io/namespace"},

		{name: "another volume at the socket's place", pod: pod{annotations: injected(""), change: mounting(object{"name": "v", "mountPath": "/run/locksidecar/"}, "v")}, reject: "another volume at or in /run/locksidecar"},
		{name: "by its other name", pod: pod{annotations: injected(""), change: mounting(object{"name": "v", "mountPath": "/var/run/locksidecar"}, "v")}, reject: "another volume at or in /run/locksidecar"},
		{name: "over the socket", pod: pod{annotations: injected(""), change: mounting(object{"name": "v", "mountPath": "/run//locksidecar/locksidecar.sock"}, "v")}, reject: "another volume at or in /run/locksidecar"},
		{name: "a folder of the volume", pod: pod{annotations: injected(""), change: mounting(object{"name": "locksidecar", "mountPath": "/run/locksidecar", "subPath": "a"}, "locksidecar")}, reject: "leave subPath out"},
		{name: "a volume beside it", pod: pod{annotations: injected(""), change: mounting(object{"name": "v", "mountPath": "/run/locksidecars"}, "v")}},

		{name: "the sidecar's port", pod: pod{annotations: injected(""), change: func(spec object) { theApp(spec)["ports"] = []object{{"containerPort": 24737}} }}, reject: "has the port that the sidecar takes"},
		{name: "the sidecar's port, and another one for it", pod: pod{annotations: wants("http-port", "9091"), change: func(spec object) { theApp(spec)["ports"] = []object{{"containerPort": 24737}} }}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pod.name, c.pod.command = "refused", []string{"true"}
			out, err := c.pod.dryRun(t.Context())
			switch {
			case c.reject == "" && (err != nil || !strings.Contains(out, "locksidecar.io/status")):
				t.Errorf("%v\n%s", err, out)
			case c.reject != "" && (err == nil || !strings.Contains(err.Error(), c.reject)):
				t.Errorf("not refused with %q: %v", c.reject, err)
			}
		})
	}
}

// Kubernetes' own classes, and resources of a pod as a whole.
func TestQuality(t *testing.T) {
	whole := object{"cpu": "100m", "memory": "64Mi"}
	for _, c := range []struct {
		name, class string
		pod         pod
	}{
		{"equal requests and limits", "Guaranteed", pod{change: resources(object{"limits": whole})}},
		{"requests", "Burstable", pod{change: resources(object{"requests": whole})}},
		{"nothing", "Burstable", pod{}},
		{"no room in the pod as a whole", "Guaranteed", pod{change: func(spec object) {
			spec["resources"] = object{"requests": whole, "limits": whole}
			resources(object{"requests": whole})(spec)
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pod.name, c.pod.command, c.pod.annotations = "quality", app("hold", "quality"), injected("")
			out, err := c.pod.dryRun(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out, "LOCKSIDECAR") || !strings.Contains(out, fmt.Sprintf(`"qosClass": %q`, c.class)) {
				t.Errorf("not %s, or no sidecar: %s", c.class, out)
			}
		})
	}
}

// What has no effect is told to whoever writes it, and is made all the same.
func TestWarnings(t *testing.T) {
	yes := object{"locksidecar.io/inject": "true"}
	meta := func(o object) object {
		o["name"] = "warned"
		return o
	}
	workload := func(version, kind string, metadata, template object) object {
		labels := object{"app": "warned"}
		if more, ok := template["labels"].(object); ok {
			for k, v := range more {
				labels[k] = v
			}
		}
		template["labels"] = labels
		of := pod{name: "warned", command: []string{"true"}}.spec()
		spec := object{"template": object{"metadata": template, "spec": of}}
		switch kind {
		case "Job", "CronJob":
			of["restartPolicy"] = "Never"
			if kind == "CronJob" {
				spec = object{"schedule": "0 0 1 1 *", "jobTemplate": object{"spec": spec}}
			}
		default:
			spec["selector"] = object{"matchLabels": object{"app": "warned"}}
		}
		metadata["namespace"] = appsNS
		return object{"apiVersion": version, "kind": kind, "metadata": meta(metadata), "spec": spec}
	}
	ns := func(metadata object) object {
		return object{"apiVersion": "v1", "kind": "Namespace", "metadata": meta(metadata)}
	}
	for _, c := range []struct {
		name string
		o    object
		want string // empty: no warning
	}{
		{"a namespace", ns(object{"labels": object{"locksidecar.io/inject": "enabled"}}), ""},
		{"a namespace that says true", ns(object{"labels": yes}), "the label locksidecar.io/inject of the namespace is 'true', which has no effect"},
		{"a namespace with the annotation", ns(object{"annotations": yes}), "the annotation locksidecar.io/inject of a namespace has no effect"},
		{"a Deployment", workload("apps/v1", "Deployment", object{}, object{"annotations": yes}), ""},
		{"a Deployment with the annotation", workload("apps/v1", "Deployment", object{"annotations": yes}, object{}), "locksidecar.io/inject in the metadata of deployments has no effect"},
		{"a Deployment with the label in its template", workload("apps/v1", "Deployment", object{}, object{"labels": yes}), "the label locksidecar.io/inject in a pod template has no effect"},
		{"a CronJob", workload("batch/v1", "CronJob", object{}, object{"annotations": yes}), ""},
		{"a CronJob with the annotation", workload("batch/v1", "CronJob", object{"annotations": yes}, object{}), "locksidecar.io/inject in the metadata of cronjobs has no effect"},
		{"a Job with the annotation", workload("batch/v1", "Job", object{"annotations": yes}, object{}), "locksidecar.io/inject in the metadata of jobs has no effect"},
	} {
		t.Run(c.name, func(t *testing.T) {
			told, err := warnings(t.Context(), c.o)
			if err != nil {
				t.Fatal(err)
			}
			if (told == "") != (c.want == "") || !strings.Contains(told, c.want) {
				t.Errorf("told %q, want %q", told, c.want)
			}
		})
	}
	t.Run("a pod in a namespace that says true", func(t *testing.T) {
		extraNamespace(t, mistypedNS, yes)
		for annotation, want := range map[string]string{"": "this pod has no sidecar: the label locksidecar.io/inject of its namespace is 'true'", "true": "", "false": ""} {
			p := pod{ns: mistypedNS, name: "warned", command: []string{"true"}}
			if annotation != "" {
				p.annotations = wants("inject", annotation)
			}
			told, err := warnings(t.Context(), p.object())
			if err != nil || (told == "") != (want == "") || !strings.Contains(told, want) {
				t.Errorf("inject %q: told %q, %v", annotation, told, err)
			}
		}
	})
}

// The API server's own plug-ins change and refuse resources too: who makes the pod learns what
// that means for the sidecar.
func TestLimits(t *testing.T) {
	extraNamespace(t, limitedNS, nil)
	extraNamespace(t, quotaNS, nil)
	for _, o := range []object{
		{"apiVersion": "v1", "kind": "LimitRange", "metadata": object{"name": "small", "namespace": limitedNS},
			"spec": object{"limits": []object{{"type": "Container", "default": object{"cpu": "200m"}, "defaultRequest": object{"cpu": "50m"}}}}},
		{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": object{"name": "all", "namespace": quotaNS},
			"spec": object{"hard": object{"limits.cpu": "1"}}},
	} {
		if err := create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}

	p := pod{ns: limitedNS, name: "limited", command: []string{"true"}, annotations: injected("")}
	eventually(t, "the LimitRange is in force", func() bool {
		out, err := pod{ns: limitedNS, name: "limited", command: []string{"true"}}.dryRun(t.Context())
		return err == nil && strings.Contains(out, `"cpu": "200m"`)
	})
	told, err := warnings(t.Context(), p.object())
	if want := "the sidecar of this pod has a CPU limit of 200m, which neither its profile nor an annotation asks for"; err != nil || !strings.Contains(told, want) {
		t.Errorf("with a LimitRange: told %q, %v", told, err)
	}
	p.annotations = wants("cpu-limit", "500m")
	if told, err = warnings(t.Context(), p.object()); err != nil || told != "" {
		t.Errorf("with a limit of its own: told %q, %v", told, err)
	}

	p = pod{ns: quotaNS, name: "limited", command: []string{"true"}, annotations: injected(""), change: resources(object{"limits": object{"cpu": "100m"}})}
	eventually(t, "the quota refuses a sidecar without a CPU limit", func() bool {
		_, err = p.dryRun(t.Context())
		return err != nil && strings.Contains(err.Error(), "must specify limits.cpu for: locksidecar")
	})
	p.annotations = wants("cpu-limit", "500m")
	if _, err = p.dryRun(t.Context()); err != nil {
		t.Errorf("with a limit of its own: %v", err)
	}
}

// An upgrade that cannot be is refused before anything is changed.
func TestRefusedUpgrade(t *testing.T) {
	works := func() {
		t.Helper()
		for _, profile := range []string{"", "other"} {
			out, err := pod{name: "after-refusal", command: []string{"true"}, annotations: injected(profile)}.dryRun(t.Context())
			if err != nil || !strings.Contains(out, cluster.redis) {
				t.Errorf("profile %q: %v\n%s", profile, err, out)
			}
		}
	}
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"no store", `Profile "default" has no store`, []string{"--set", "profileDefaults.store.url="}},
		{"no image", `Profile "default" has no image`, []string{"--set", "profileDefaults.image.repository="}},
		{"a ttl that the sidecar refuses", "must be 500ms to 10m", []string{"--set", "profiles.other.ttl=1ms"}},
		{"too many profiles", "where the API server takes no expression of more than 100000", []string{"--values", manyProfiles(900)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := helm(t.Context(), installArgs("upgrade", c.args...)...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("not refused with %q: %v", c.want, err)
			}
			works()
		})
	}
}

// manyProfiles is a file of values with profiles as a platform for many teams has them.
func manyProfiles(n int) string {
	profiles := object{}
	for i := range n {
		team := fmt.Sprintf("team-%d", i)
		profiles[team] = object{"namespace": team, "store": object{"url": "redis://" + cluster.redis + "?restart-grace=0s"}, "onlyIn": []string{appsNS, team}}
	}
	return valuesFile("locksidecar-e2e-profiles.json", object{"profiles": profiles})
}

// There is room for hundreds of profiles: the API server stores the policies, compiles them, and
// has enough of a budget to evaluate them.
func TestManyProfiles(t *testing.T) {
	const n = 400
	last := fmt.Sprintf("team-%d", n-1)
	none := func(ctx context.Context) error {
		_, err := pod{name: "many", command: []string{"true"}, annotations: injected(last)}.dryRun(ctx)
		if err == nil || !strings.Contains(err.Error(), profileNames) {
			return errors.Join(errors.New("the profiles are there"), err)
		}
		return nil
	}
	if err := none(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := helm(ctx, installArgs("upgrade")...)
		if err = errors.Join(err, poll(func() error { return none(ctx) })); err != nil {
			t.Error(err)
		}
	})
	if _, err := helm(t.Context(), installArgs("upgrade", "--values", manyProfiles(n))...); err != nil {
		t.Fatal(err)
	}
	var out string
	eventually(t, "the last profile can be used", func() bool {
		var err error
		out, err = pod{name: "many", command: []string{"true"}, annotations: injected(last)}.dryRun(t.Context())
		return err == nil
	})
	if !strings.Contains(out, `"value": "`+last+`"`) {
		t.Errorf("not the lock namespace of the profile: %s", out)
	}
	eventually(t, "a name that is none is refused with some of the names", func() bool {
		_, err := pod{name: "many", command: []string{"true"}, annotations: injected("none")}.dryRun(t.Context())
		return err != nil && strings.Contains(err.Error(), "there are: default, down, files, guarded, ") && strings.Contains(err.Error(), "in all)")
	})
	p := pod{name: "many", command: app("hold", "many"), annotations: injected(last)}.start(t)
	p.await(t, "granted", 1)
}

// No app can take the socket from the others, whoever it runs as.
func TestSocketStays(t *testing.T) {
	p := idle(t, "socket-stays", "")
	for _, command := range [][]string{
		{"rm", "-f", "/run/locksidecar/locksidecar.sock"},
		{"mv", "/run/locksidecar/locksidecar.sock", "/run/locksidecar/else"},
		{"touch", "/run/locksidecar/mine"},
	} {
		args := append([]string{"exec", "-n", appsNS, p.name, "-c", "app", "--"}, command...)
		if out, err := kubectl(t.Context(), args...); err == nil || !strings.Contains(err.Error(), "Read-only file system") {
			t.Errorf("%v: %v %s", command, err, out)
		}
	}
	if e := p.attempt(t, "socket-stays"); e.Event != "granted" {
		t.Errorf("afterwards: %+v", e)
	}
}

// A pod that has processors for itself is one of those with the sidecar too, and runs.
func TestGuaranteedRuns(t *testing.T) {
	p := pod{name: "guaranteed", command: app("hold", "guaranteed"), annotations: injected(""),
		change: resources(object{"limits": object{"cpu": "200m", "memory": "128Mi"}})}.start(t)
	p.await(t, "granted", 1)
	p.awaitReady(t)
	if s := p.status(t); s.Status.QOSClass != "Guaranteed" {
		t.Errorf("it is %s", s.Status.QOSClass)
	}
}

// The API server's own check of types finds nothing in the expressions of the policies: what it
// warns of would fail, or have no effect, when it is evaluated.
func TestTypeChecks(t *testing.T) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name       string
				Generation int64
			}
			Status struct {
				ObservedGeneration int64
				TypeChecking       struct {
					ExpressionWarnings []struct{ FieldRef, Warning string }
				}
			}
		}
	}
	eventually(t, "the types are checked", func() bool {
		get(t, &list, "validatingadmissionpolicies", "-l", "app.kubernetes.io/instance="+release)
		for _, p := range list.Items {
			if p.Status.ObservedGeneration != p.Metadata.Generation {
				return false
			}
		}
		return len(list.Items) == 3
	})
	for _, p := range list.Items {
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s, %s: %s", p.Metadata.Name, w.FieldRef, w.Warning)
		}
	}
}
