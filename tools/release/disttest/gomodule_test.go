package disttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const goApp = `package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	client "github.com/locksidecar/client-go"
)

func main() {
	ctx := context.Background()
	c, err := client.Dial(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "app"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	l, err := s.Acquire(ctx, "orders/42", client.AcquireOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held", l.Fence)
	_, _ = io.ReadAll(os.Stdin)
	if err := l.Release(ctx); err != nil {
		log.Fatal(err)
	}
}
`

// The module of the Go client is what a proxy serves. An app with it needs nothing of what the
// sidecar needs, and no newer Go than the module says.
func TestGoModule(t *testing.T) {
	name := artifact(t, "locksidecar-client-go-%s.zip")
	served := map[string]string{}
	for file, text := range unpacked(t, name, read(t, name)) {
		served[file] = string(text)
	}
	proxy := files(t, served)
	dir := files(t, map[string]string{"main.go": goApp, "go.mod": "module app\n\ngo 1.24.0\n"})
	others, err := exec.CommandContext(t.Context(), "go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	// A cache of its own: what is tested must not stay in the user's.
	cache := t.TempDir()
	for key, value := range map[string]string{
		"GOPROXY": "file://" + proxy + "," + strings.TrimSpace(string(others)), "GONOSUMDB": "github.com/locksidecar/*",
		"GOMODCACHE": cache, "GOFLAGS": "-modcacherw", "GOWORK": "off",
	} {
		t.Setenv(key, value)
	}
	run(t, dir, "go", "get", "github.com/locksidecar/client-go@v"+version)
	run(t, dir, "go", "build", "-o", "app", ".")
	modules := strings.Fields(run(t, dir, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "."))
	slices.Sort(modules)
	want := []string{"app", "github.com/locksidecar/client-go", "golang.org/x/sys", "google.golang.org/genproto/googleapis/api", "google.golang.org/genproto/googleapis/rpc", "google.golang.org/protobuf"}
	if got := slices.Compact(modules); !slices.Equal(got, want) {
		t.Errorf("the app needs %v, not %v", got, want)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !strings.Contains(string(mod), "\ngo 1.24.0\n") {
		t.Errorf("the app needs another Go now: %v\n%s", err, mod)
	}
	holds(t, dir, filepath.Join(dir, "app"))
}
