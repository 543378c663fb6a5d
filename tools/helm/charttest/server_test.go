package charttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// server is a real API server, asked by kubectl.
type server struct{ kubeconfig string }

// kubectl runs it with in as its standard input.
func (s server) kubectl(in string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.Command("kubectl", append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), errs.String(), err
}

func (s server) must(t *testing.T, in string, args ...string) string {
	t.Helper()
	out, _, err := s.kubectl(in, args...)
	if err != nil {
		t.Fatalf("kubectl %v: %v", args, err)
	}
	return out
}

// admit gives what a dry run makes of a pod.
func (s server) admit(namespace string, pod *corev1.Pod) (*corev1.Pod, string, error) {
	pod = pod.DeepCopy()
	pod.Namespace, pod.ResourceVersion, pod.UID = namespace, "", ""
	pod.APIVersion, pod.Kind = "v1", "Pod"
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, "", err
	}
	out, warnings, err := s.kubectl(string(text), "create", "--dry-run=server", "-o", "json", "-f", "-")
	if err != nil {
		return nil, "", err
	}
	admitted := &corev1.Pod{}
	if err := json.Unmarshal([]byte(out), admitted); err != nil {
		return nil, "", err
	}
	if !strings.Contains(warnings, "ValidatingAdmissionPolicy") { // others warn too
		warnings = ""
	}
	return admitted, warnings, nil
}

// install brings the policies of the chart, and waits until they are in force.
func (s server) install(t *testing.T, text string) {
	t.Helper()
	mark := fmt.Sprint(time.Now().UnixNano())
	v := parse(t, text)
	v["profileDefaults"] = values{"env": values{"MARK": mark}}
	var all strings.Builder
	for _, o := range objects(t, theChart(t), v, "v1.36") {
		if o["kind"] == "Pod" { // of helm test: it would need a node
			continue
		}
		doc, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("---\n" + string(doc))
	}
	t.Cleanup(func() { s.must(t, all.String(), "delete", "--ignore-not-found", "-f", "-") })
	s.must(t, all.String(), "apply", "-f", "-")
	// Each of the four policies comes into force by itself.
	denies := !strings.Contains(text, "failurePolicy: Ignore")
	for namespace, inject := range map[string]string{"locks-plain": `locksidecar.io/inject: "true", `, "locks-opted-in": ""} {
		pod := func(profile string) *corev1.Pod {
			return parsePod(t, `{annotations: {`+inject+`locksidecar.io/profile: `+profile+`}, spec: {containers: [{name: app, image: app}]}}`)
		}
		poll(t, func() error {
			admitted, _, err := s.admit(namespace, pod("default"))
			if err == nil && !strings.Contains(fmt.Sprint(admitted.Spec.InitContainers), mark) {
				err = errors.New("no sidecar of these values")
			}
			return err
		})
		poll(t, func() error {
			_, warnings, err := s.admit(namespace, pod("nonsense"))
			if told := warnings + fmt.Sprint(err); !strings.Contains(told, "names 'nonsense'") || denies != (err != nil) {
				return fmt.Errorf("a profile that is none: %s", told)
			}
			return nil
		})
	}
}

// poll waits until f has no error.
func poll(t *testing.T, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func realServer(t *testing.T) server {
	t.Helper()
	s := server{os.Getenv("LOCKSIDECAR_TEST_KUBECONFIG")}
	if s.kubeconfig == "" {
		t.Skip("LOCKSIDECAR_TEST_KUBECONFIG names no cluster")
	}
	for name, ns := range namespaces() {
		if name == "kube-system" {
			continue
		}
		doc, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": ns.ObjectMeta})
		if err != nil {
			t.Fatal(err)
		}
		s.must(t, string(doc), "apply", "-f", "-")
		s.account(t, name)
	}
	return s
}

// account sees to it that a namespace has its service account: an API server
// without controllers makes none.
func (s server) account(t *testing.T, namespace string) {
	t.Helper()
	s.must(t, `{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "`+namespace+`"}}`, "apply", "-f", "-")
}

// TestServer takes the same pods through a real API server.
func TestServer(t *testing.T) {
	s := realServer(t)
	s.install(t, theValues)
	for _, c := range admissionCases {
		t.Run(c.name, func(t *testing.T) {
			if c.namespace == "kube-system" {
				s.account(t, c.namespace)
			}
			c.run(t, s.admit)
		})
	}
	t.Run("restricted", func(t *testing.T) {
		s.must(t, "", "label", "--overwrite", "namespace", "locks-plain", "pod-security.kubernetes.io/enforce=restricted")
		defer s.must(t, "", "label", "namespace", "locks-plain", "pod-security.kubernetes.io/enforce-")
		for _, profile := range []string{"default", "billing", "files"} {
			pod, _, err := s.admit("locks-plain", parsePod(t, `{annotations: {locksidecar.io/inject: "true", locksidecar.io/profile: `+profile+`}, spec: {containers: [{name: app, image: app, securityContext:
				{runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}}]}}`))
			if err != nil {
				t.Fatal(err)
			}
			sidecar(t, pod)
		}
	})
	t.Run("no policy, no sidecar", func(t *testing.T) {
		s.must(t, "", "delete", "mutatingadmissionpolicybinding", "locksidecar")
		poll(t, func() error {
			if _, _, err := s.admit("locks-plain", parsePod(t, plain(""))); err == nil || !strings.Contains(err.Error(), "the sidecar was not put into the pod") {
				return fmt.Errorf("a pod without its sidecar: %v", err) //nolint:errorlint // there may be none
			}
			return nil
		})
		if _, _, err := s.admit("locks-plain", parsePod(t, `{spec: {containers: [{name: app, image: app}]}}`)); err != nil {
			t.Errorf("a pod that asks for nothing: %v", err)
		}
	})
}

// TestServerIgnore is TestIgnore on a real API server, with policies that come after
// others of the same names were deleted.
func TestServerIgnore(t *testing.T) {
	s := realServer(t)
	s.install(t, ignoring)
	pod, warnings, err := s.admit("locks-plain", parsePod(t, plain(", locksidecar.io/ttl: soon")))
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, sidecar(t, pod), "LOCKSIDECAR_TTL", "10s")
	if !strings.Contains(warnings, "locksidecar.io/ttl is 'soon'") {
		t.Errorf("warnings %q", warnings)
	}
}
