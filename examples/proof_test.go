package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// proofs are the programs that end with what they have proven, in a folder.
var proofs = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(filepath.Dir(binary), "proofs") // which goes with it
	build := exec.CommandContext(context.Background(), "go", "build", "-ldflags=-w", "-o", dir+"/", "./cron", "./trade")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the program, with which they share most packages
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return dir, nil
})

// proven runs one of the programs in a short form.
func proven(t *testing.T, want, name string, args ...string) {
	t.Helper()
	dir, err := proofs()
	if err != nil {
		t.Fatal(err)
	}
	out, ok := suite(t, ".", environment("LOCKSIDECAR_BINARY="+binary), append([]string{filepath.Join(dir, name)}, args...)...)
	t.Log(out)
	if !ok || !strings.Contains(out, "\nProven: "+want) {
		t.Errorf("it did not prove that %s", want)
	}
}

func TestTrade(t *testing.T) {
	t.Parallel()
	long(t)
	proven(t, "each of the 60 withdrawals was paid once and booked once", "trade",
		"-store", testengine.Shared(t, testengine.MySQL).URL(), "-withdrawals", "60", "-limit", "2m")
}

func TestCron(t *testing.T) {
	t.Parallel()
	proven(t, "the job was done once at each of the 5 ticks", "cron",
		"-store", redisURL(t), "-ticks", "5", "-period", "300ms", "-skew", "200ms", "-limit", "2m")
}
