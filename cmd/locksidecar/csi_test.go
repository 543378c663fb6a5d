package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// What the driver does is tested in node/csi.
func TestCSI(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--driver-name", "No_Name"}, exitUsage, "is no name of a driver"},
		{[]string{"--kubelet-folder", "/var/lib/kubelet/"}, exitUsage, "as the kubelet writes it"},
		{[]string{"--node-folder", "x"}, exitUsage, "must be an absolute path"},
		{[]string{"--node-name", strings.Repeat("n", 257)}, exitUsage, "must be 1 to 256"},
		{[]string{"--log-level", "loud"}, exitUsage, "--log-level"},
		{[]string{"--kubelet-folder", t.TempDir()}, exitFailure, "there is no kubelet here"},
	} {
		if got := cli(t, append([]string{"csi"}, c.args...)...); got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%q: %+v", c.args, got)
		}
	}
	if got := cli(t, "csi", "--help"); got.code != 0 || !strings.Contains(got.out, "readOnly: true") {
		t.Errorf("%+v", got)
	}
}

// It runs until it is told to stop.
func TestCSIStops(t *testing.T) {
	dir := socketDir(t)
	for _, folder := range []string{"pods", "plugins_registry"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	owner := os.Getuid()
	if owner == 0 {
		owner = 1234
	}
	p := launch(t, nil, binary, "csi", "--kubelet-folder", dir, "--node-folder", filepath.Join(dir, "node"), "--socket-owner", strconv.Itoa(owner))
	socket := filepath.Join(dir, "plugins_registry", "node.locksidecar.io.sock")
	listens := func() bool {
		_, err := os.Stat(socket)
		return err == nil
	}
	eventually(t, "it listens", listens)
	var folder syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "node", "socket"), &folder); err != nil || int(folder.Uid) != owner || folder.Mode&0o777 != 0o755 {
		t.Errorf("the socket's folder: %v, user %d, mode %o", err, folder.Uid, folder.Mode)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("status %d: %s", code, p.err)
	}
	if listens() {
		t.Error("the socket is there still")
	}
}
