package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version string

// buildVersion is what is known of this build.
var buildVersion = sync.OnceValue(func() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	v := "devel"
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v += "-" + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			v += "-modified"
		}
	}
	return v
})

func newVersion(io streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  noArgs,
	}
	output := addOutput(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		var err error
		if asJSON, err = output.json(); err != nil {
			return err
		}
		v := struct {
			Version   string `json:"version"`
			GoVersion string `json:"goVersion"`
			Platform  string `json:"platform"`
		}{buildVersion(), strings.TrimPrefix(runtime.Version(), "go"), runtime.GOOS + "/" + runtime.GOARCH}
		if asJSON {
			return json.NewEncoder(io.out).Encode(v)
		}
		_, err = fmt.Fprintf(io.out, "locksidecar %s (Go %s, %s)\n", v.Version, v.GoVersion, v.Platform)
		return err
	}
	return cmd
}
