package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
)

// Several URLs of --store are one setting, wherever they stand.
func TestStoreFlag(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "sidecar.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, env, file, want string
		args                  []string
	}{
		{name: "default", want: "embedded:"},
		{name: "once", args: []string{"--store", "redis://a"}, want: "redis://a"},
		{name: "several times", args: []string{"--store", "redis://a", "--store=redis://b"}, want: "redis://a redis://b"},
		{name: "environment", env: "redis://a redis://b", want: "redis://a redis://b"},
		{name: "file", file: file(`store: "redis://a redis://b"`), want: "redis://a redis://b"},
		{name: "list in the file", file: file("store:\n  - redis://a\n  - redis://b\n"), want: "redis://a redis://b"},
		{name: "command line before environment", args: []string{"--store", "redis://a"}, env: "redis://b", want: "redis://a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := &cobra.Command{}
			s := addStoreURL(cmd, "embedded:", "")
			if err := cmd.ParseFlags(c.args); err != nil {
				t.Fatal(err)
			}
			env := func(name string) (string, bool) {
				return c.env, name == "LOCKSIDECAR_STORE" && c.env != ""
			}
			if err := config.Apply(cmd.Flags(), config.Source{Env: env, File: c.file}); err != nil {
				t.Fatal(err)
			}
			if s.url != c.want {
				t.Errorf("the store is %q, want %q", s.url, c.want)
			}
		})
	}
}
