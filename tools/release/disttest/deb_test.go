package disttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// The Debian package installs, serves as its unit says, and goes again: in a copy of this
// system, of which nothing stays.
func TestDeb(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a copy of this system to install into")
	}
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("this is no Debian")
	}
	script, err := filepath.Abs("testdata/deb.sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(run(t, t.TempDir(), "unshare", "--mount", "--", script, artifact(t, "locksidecar_%s_"+runtime.GOARCH+".deb"), version))
}

// Debian's own critic has nothing to say about the package.
func TestLintian(t *testing.T) {
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip("this is no Debian, or lintian is not installed")
	}
	for _, arch := range []string{"amd64", "arm64"} {
		out := run(t, "", "lintian", "--allow-root", "--fail-on", "error,warning", artifact(t, "locksidecar_%s_"+arch+".deb"))
		if out != "" {
			t.Log(out)
		}
	}
}
