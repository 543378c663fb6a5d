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
