package charttest

import (
	"fmt"
	"testing"
)

// TestNoAppIsAnAdmin: an app in its usual user, root and distroless' nonroot among them,
// cannot take locks from others unless a value says so.
func TestNoAppIsAnAdmin(t *testing.T) {
	const nobody = "4294967294" // Kubernetes knows no user above 2147483647
	e := newEvaluator(t, objects(t, theChart(t), parse(t, `
profiles:
  default: {}
  platform: {runAsUser: 0}
  own: {runAsUser: 1234}
  named: {adminUids: [0, 1000]}
`), "v1.36"))
	for _, c := range []struct{ profile, admins string }{
		{"default", "57432"}, {"platform", nobody}, {"own", "1234"}, {"named", "0,1000"},
	} {
		pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain(", locksidecar.io/profile: "+c.profile)))
		if err != nil {
			t.Fatal(err)
		}
		s := sidecar(t, pod)
		wantEnv(t, s, "LOCKSIDECAR_ADMIN_UID", c.admins)
		if user := s.SecurityContext.RunAsUser; c.profile == "default" && (user == nil || fmt.Sprint(*user) != c.admins) {
			t.Errorf("the sidecar itself is no admin: it runs as %v", user)
		}
	}
}
