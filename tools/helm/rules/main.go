// Command rules writes the chart's alarms as a file of rules for a Prometheus outside
// Kubernetes, where sidecars are told apart by the label instance.
//
//	go run ./rules ../../deploy/helm/locksidecar ../../deploy/prometheus/locksidecar.rules.yaml
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: rules CHART FILE")
		os.Exit(2)
	}
	text, err := rules(os.Args[1])
	if err == nil {
		err = os.WriteFile(os.Args[2], []byte(text), 0o644) //nolint:gosec // for everybody to read
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		os.Exit(1)
	}
}

const head = `# Alarms about sidecars, for Prometheus without Kubernetes. Scrape the sidecars' --http-addr
# as job "locksidecar". Written by make generate from the chart's files/alarms.yaml;
# what each means is in docs/observing.md.
groups:
- name: locksidecar
  rules:
`

// elsewhere is what the chart's alarms say of pods, and how it is said without them.
var elsewhere = strings.NewReplacer(
	"the sidecar of pod {{ $labels.namespace }}/{{ $labels.pod }}", "the sidecar at {{ $labels.instance }}",
	"The sidecar of pod {{ $labels.namespace }}/{{ $labels.pod }}", "The sidecar at {{ $labels.instance }}",
	"The locks of pod {{ $labels.namespace }}/{{ $labels.pod }}", "The locks of the sidecar at {{ $labels.instance }}",
	"Heartbeats of pod {{ $labels.namespace }}/{{ $labels.pod }}", "Heartbeats of the sidecar at {{ $labels.instance }}",
	"An app of pod {{ $labels.namespace }}/{{ $labels.pod }}", "An app of the sidecar at {{ $labels.instance }}",
	"A lock was taken from pod {{ $labels.namespace }}/{{ $labels.pod }}", "A lock was taken from an app of the sidecar at {{ $labels.instance }}",
	"Pod {{ $labels.namespace }}/{{ $labels.pod }} lost locks at the stop of its sidecar", "Apps lost locks at the stop of the sidecar at {{ $labels.instance }}",
	"Pod {{ $labels.namespace }}/{{ $labels.pod }}", "Apps of the sidecar at {{ $labels.instance }}",
	"The store answers pods of {{ $labels.namespace }} slowly", "The store answers slowly",
	"Pods of {{ $labels.namespace }} wait", "Apps wait",
	"or port locksidecar cannot be reached", "or --http-addr cannot be reached",
	"Look at the container and its log", "Look at the process and its log",
	" (annotation locksidecar.io/cpu-request)", "",
	"maxHolds, maxWaiters or maxInFlight", "--max-holds, --max-holds-per-uid, --max-waiters or --max-in-flight",
	"by (namespace, pod, ", "by (instance, ",
	"by (namespace, pod)", "by (instance)",
	"by (namespace, le)", "by (le)",
	"by (namespace, pattern)", "by (pattern)",
	"sum by (namespace) (", "sum(",
)

var (
	ofPods    = regexp.MustCompile(`\bnamespace\b|\bpods?\b|\$\{`)
	threshold = regexp.MustCompile(`\$\{(\w+)\}`)
)

// rules is the file for a chart.
func rules(chart string) (string, error) {
	alarms, err := os.ReadFile(filepath.Join(chart, "files", "alarms.yaml")) //nolint:gosec // whoever starts it names the chart
	if err != nil {
		return "", fmt.Errorf("read the alarms: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml")) //nolint:gosec // whoever starts it names the chart
	if err != nil {
		return "", fmt.Errorf("read values: %w", err)
	}
	var values struct {
		PrometheusRule struct {
			Thresholds map[string]string
		} `yaml:"prometheusRule"`
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return "", fmt.Errorf("read values: %w", err)
	}
	var out strings.Builder
	out.WriteString(head)
	for line := range strings.Lines(elsewhere.Replace(string(alarms))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = threshold.ReplaceAllStringFunc(line, func(name string) string {
			if v, ok := values.PrometheusRule.Thresholds[name[2:len(name)-1]]; ok {
				return v
			}
			return name
		})
		if ofPods.MatchString(line) {
			return "", fmt.Errorf("only for pods: %s", strings.TrimSpace(line))
		}
		out.WriteString("  " + line)
	}
	return out.String(), nil
}
