package examples

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/socketrule"
)

const socketCases = "contract/vectors/socket.json"

// finders are programs that print where the socket is, or say on stderr why it cannot be
// told, and end with another status than 0. They get the folder that stands for
// /run/locksidecar, and the user who asks. They become that user when they have loaded
// what they need, which he may not be allowed to read.
var finders = map[string]struct {
	install string
	argv    []string
}{
	"python": {"python3 python3-venv", []string{"python3", "-c", `
import os, sys
sys.path.insert(0, "python/src")
from locksidecar import NoSidecar
from locksidecar._socket import _default_socket
os.setuid(int(sys.argv[2]))
try:
    print(_default_socket(os.environ, sys.argv[1]))
except NoSidecar as e:
    sys.exit(str(e))
`}},
	"node": {"nodejs", []string{"node", "-e", `
const { defaultSocket } = require('./node/lib/socket.cjs');
const [system, uid] = process.argv.slice(1);
process.setuid(Number(uid));
try {
  console.log(defaultSocket(process.env, system));
} catch (err) {
  console.error(err.reason + ': ' + err.message);
  process.exitCode = 1;
}
`}},
	"php": {"php-cli", []string{"php", "-r", `
require 'php/locksidecar.php';
posix_setuid((int) $argv[2]);
try {
    echo Locksidecar\Client::defaultSocket($argv[1]), "\n";
} catch (Locksidecar\NoSidecar $e) {
    fwrite(STDERR, $e->getMessage());
    exit(1);
}
`}},
	"ruby": {"ruby", []string{"ruby", "--disable-gems", "-e", `
require "./ruby/locksidecar"
Process::UID.change_privilege(ARGV[1].to_i)
begin
  puts Locksidecar.default_socket(ENV, ARGV[0])
rescue Locksidecar::NoSidecar => e
  abort e.message
end
`}},
}

// Each client finds the sidecar where the program makes its socket.
func TestSocketRule(t *testing.T) {
	t.Parallel()
	for language, f := range finders {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			long(t)
			needs(t, f.install, f.argv[0])
			argv := slices.Clone(f.argv)
			if language == "python" { // what is in PATH may be a script that looks for one each time
				argv[0] = python(t)
			}
			ask(t, argv)
		})
	}
	t.Run("rust", func(t *testing.T) {
		t.Parallel()
		long(t)
		ask(t, []string{buildRust(t)["client"], "find"})
	})
	t.Run("shell", func(t *testing.T) {
		t.Parallel()
		socketrule.Run(t, socketCases, shellFinds)
	})
}

// ask asks a finder for each case.
func ask(t *testing.T, argv []string) {
	t.Helper()
	socketrule.Run(t, socketCases, func(t *testing.T, c socketrule.Case) (string, error) {
		t.Helper()
		args := append(slices.Clone(argv[1:]), c.System, strconv.Itoa(c.UID))
		return found(t, exec.CommandContext(t.Context(), argv[0], args...), c)
	})
}

// found runs a finder.
func found(t *testing.T, cmd *exec.Cmd, c socketrule.Case) (string, error) {
	t.Helper()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PYTHONDONTWRITEBYTECODE=1"}, c.Environ()...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	if err != nil {
		return "", errors.New(said.String())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// shellFinds asks with-lock, in which the folder of the system is another one. Nothing
// answers at any socket: it says where it has looked.
func shellFinds(t *testing.T, c socketrule.Case) (string, error) {
	t.Helper()
	text, err := os.ReadFile("shell/with-lock")
	if err != nil {
		t.Fatal(err)
	}
	const system = "/run/locksidecar"
	if strings.Count(string(text), system) != 1 {
		t.Fatalf("with-lock names %s more or less than once", system)
	}
	script := filepath.Join(filepath.Dir(filepath.Dir(c.System)), "with-lock") // where its user can read it
	if err := os.WriteFile(script, []byte(strings.Replace(string(text), system, c.System, 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, "resource", "0", "true")
	if id := uint32(c.UID); c.UID != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	}
	_, err = found(t, cmd, c)
	if err == nil {
		t.Fatal("it has found a sidecar")
	}
	_, path, ok := strings.Cut(err.Error(), "locksidecar serve --socket ")
	if !ok {
		return "", err
	}
	return strings.TrimSuffix(path, ")\n"), nil
}
