package e2e

import (
	"fmt"
	"strings"
	"testing"
)

const (
	optedNS      = "locksidecar-e2e-opted"      // its label asks for the sidecar
	restrictedNS = "locksidecar-e2e-restricted" // Pod Security: restricted
	mistypedNS   = "locksidecar-e2e-mistyped"   // its label has a value that has no effect
	limitedNS    = "locksidecar-e2e-limited"    // with a LimitRange
	quotaNS      = "locksidecar-e2e-quota"      // with a ResourceQuota

	profileNames = "there are: default, down, files, guarded, noport, other, quick, secret"
)

// extraNamespace makes a namespace for a test, with what the apps need.
func extraNamespace(t *testing.T, name string, labels object) {
	t.Helper()
	if err := namespace(t.Context(), name, labels); err != nil {
		t.Fatal(err)
	}
	if err := appParts(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// The sidecar is the first of the init containers, and there before the others;
// the pod's containers run as another user, and lock by curl and in Python.
func TestInjected(t *testing.T) {
	p := pod{name: "injected", init: app("once", "injected-init"), command: app("hold", "injected"), annotations: injected("")}.start(t)
	p.await(t, "granted", 1)
	s := p.status(t)
	if len(s.Spec.InitContainers) != 2 || s.Spec.InitContainers[0].Name != "locksidecar" || s.Spec.InitContainers[0].RestartPolicy != "Always" {
		t.Errorf("init containers: %+v", s.Spec.InitContainers)
	}
	if s.Metadata.Annotations["locksidecar.io/status"] != "injected by "+release {
		t.Errorf("annotations: %v", s.Metadata.Annotations)
	}
	if e := parseEvents(must(t, "logs", "-n", appsNS, p.name, "-c", "init")); len(e) != 2 || e[0].Event != "granted" || e[1].Event != "released" {
		t.Errorf("the init container said %+v", e)
	}

	// By curl: the lock is held until the request ends.
	out, _ := kubectl(t.Context(), "exec", "-n", appsNS, p.name, "-c", "app", "--", "sh", "-c",
		`id -u; curl -sS -N -m 2 --unix-socket "$LOCKSIDECAR_SOCKET" http://locksidecar/v1/hold -d '{"resource":"injected-curl"}'`)
	if !strings.HasPrefix(out, fmt.Sprint(appUser)+"\n") || !strings.Contains(out, `{"granted":{`) {
		t.Errorf("curl: %s", out)
	}
	if e := p.attempt(t, "injected-curl"); e.Event != "granted" {
		t.Errorf("after curl: %+v", e)
	}

	// Who holds it: the sidecar sees the user. The process is in another PID
	// namespace and has no number here.
	text := p.exec(t, "locksidecar", "/locksidecar", "get", "-o", "json", "injected")
	if !strings.Contains(text, fmt.Sprintf(`"uid": %d`, appUser)) || !strings.Contains(text, `"injected"`) {
		t.Errorf("the holder: %s", text)
	}
}

// What did not ask for the sidecar is not touched; what asks wrongly is told so.
func TestScope(t *testing.T) {
	annotated := func(name, value string) map[string]string {
		a := injected("")
		a["locksidecar.io/"+name] = value
		return a
	}
	for _, c := range []struct {
		name   string
		pod    pod
		reject string // a part of the message; empty: it is let in
		inject bool
	}{
		{name: "asks", pod: pod{annotations: injected("")}, inject: true},
		{name: "a profile", pod: pod{annotations: injected("other")}, inject: true},
		{name: "does not ask", pod: pod{}},
		{name: "other annotations", pod: pod{annotations: map[string]string{"a": "b"}}},
		{name: "asks not to", pod: pod{annotations: map[string]string{"locksidecar.io/inject": "false"}}},
		{name: "not asked, but a wrong profile", pod: pod{annotations: map[string]string{"locksidecar.io/profile": "none"}}},
		{name: "in kube-system", pod: pod{ns: "kube-system", annotations: injected("")}},
		{name: "in a namespace that asks", pod: pod{ns: optedNS}, inject: true},
		{name: "in a namespace that asks, with a profile", pod: pod{ns: optedNS, annotations: map[string]string{"locksidecar.io/profile": "other"}}, inject: true},
		{name: "stays out of a namespace that asks", pod: pod{ns: optedNS, annotations: map[string]string{"locksidecar.io/inject": "false"}}},
		{name: "unknown profile", pod: pod{annotations: injected("none")}, reject: profileNames},
		{name: "unknown profile where the namespace asks", pod: pod{ns: optedNS, annotations: map[string]string{"locksidecar.io/profile": "none"}}, reject: profileNames},
		{name: "neither true nor false", pod: pod{annotations: annotated("inject", "yes")}, reject: "must be 'true' or 'false'"},
		{name: "bad TTL", pod: pod{annotations: annotated("ttl", "1ms")}, reject: "500ms to 10m"},
		{name: "TTL", pod: pod{annotations: annotated("ttl", "7s")}, inject: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pod.name, c.pod.command = "scope", []string{"true"}
			out, err := c.pod.dryRun(t.Context())
			switch {
			case c.reject != "":
				if err == nil || !strings.Contains(err.Error(), c.reject) {
					t.Errorf("not refused with %q: %v", c.reject, err)
				}
			case err != nil:
				t.Error(err)
			case strings.Contains(out, "LOCKSIDECAR") != c.inject:
				t.Errorf("injected: %t\n%s", !c.inject, out)
			}
		})
	}
	t.Run("runs in a namespace that asks", func(t *testing.T) {
		p := pod{ns: optedNS, name: "opted", command: app("hold", "opted")}.start(t)
		p.await(t, "granted", 1)
	})
}

// A password is renewed in its Secret and in the store: the sidecar goes on without a restart, as
// soon as the kubelet has changed the file.
func TestPasswordIsRenewed(t *testing.T) {
	inRedis := func(args ...string) {
		t.Helper()
		redis.exec(t, "app", append([]string{"redis-cli"}, args...)...)
	}
	inRedis("ACL", "SETUSER", "renewed", "reset", "on", ">first", "~*", "&*", "+@all")
	err := create(t.Context(), object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "renewed", "namespace": appsNS}, "stringData": object{"password": "first"}})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, "secret", "renewed")
	p := idle(t, "renewed", "files")
	if e := p.attempt(t, "renewed"); e.Event != "granted" {
		t.Fatalf("with the first password: %+v", e)
	}
	must(t, "patch", "secret", "renewed", "-n", appsNS, "-p", `{"stringData": {"password": "second"}}`)
	inRedis("ACL", "SETUSER", "renewed", "resetpass", ">second")
	inRedis("CLIENT", "KILL", "USER", "renewed")
	if e := p.attempt(t, "renewed"); e.Event != "granted" { // it asks until the store is back
		t.Errorf("with the second password: %+v", e)
	}
	if n := p.status(t).restarts("locksidecar"); n != 0 {
		t.Errorf("the sidecar was started %d times again", n)
	}
}

// The sidecar fits the strictest of the Pod Security Standards.
func TestRestricted(t *testing.T) {
	extraNamespace(t, restrictedNS, object{"pod-security.kubernetes.io/enforce": "restricted"})
	for _, profile := range []string{"secret", "noport"} {
		p := pod{ns: restrictedNS, name: "restricted-" + profile, command: app("hold", "restricted-"+profile), annotations: injected(profile)}.start(t)
		p.await(t, "granted", 1)
		p.awaitReady(t)
		for what, text := range map[string]string{
			"the pod":               must(t, "get", "pod", "-n", restrictedNS, p.name, "-o", "json"),
			"the log":               must(t, "logs", "-n", restrictedNS, p.name, "--all-containers"),
			"what the app can see":  p.exec(t, "app", "curl", "-sS", "--unix-socket", "/run/locksidecar/locksidecar.sock", "http://locksidecar/v1/info"),
			"the app's environment": p.exec(t, "app", "env"),
		} {
			if strings.Contains(text, password) {
				t.Errorf("%s shows the password: %s", what, text)
			}
		}
	}
}
