package main

import (
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/report"
)

// setup notes what the numbers depend on. What cannot be read stays empty: it
// changes no number.
func setup(sidecar string) report.Setup {
	return report.Setup{
		Began:      time.Now().Format(time.RFC3339),
		CPU:        cpu(),
		Cores:      runtime.NumCPU(),
		Kernel:     first("/proc/sys/kernel/osrelease"),
		Go:         runtime.Version(),
		Sidecar:    sidecar,
		LoadBefore: load(),
	}
}

func cpu() string {
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// load is the load average of one, five and fifteen minutes.
func load() string {
	words := strings.Fields(read("/proc/loadavg"))
	return strings.Join(words[:min(3, len(words))], " ")
}

func first(path string) string {
	line, _, _ := strings.Cut(read(path), "\n")
	return line
}

func read(path string) string {
	b, _ := os.ReadFile(path) //nolint:gosec // paths of our own
	return string(b)
}
