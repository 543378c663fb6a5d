package main

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	chart = "../../../deploy/helm/locksidecar"
	file  = "../../../deploy/prometheus/locksidecar.rules.yaml"
)

// alarm is one rule of either file.
type alarm struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// The file of rules is what the chart's alarms give, alarm by alarm.
func TestRulesAreTheChartsAlarms(t *testing.T) {
	want, err := rules(chart)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Error("the file is not what the chart's alarms give: run make generate")
	}
	var ours struct {
		Groups []struct {
			Name  string
			Rules []alarm
		}
	}
	if err := yaml.Unmarshal(text, &ours); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(chart + "/files/alarms.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var theirs []alarm
	if err := yaml.Unmarshal(source, &theirs); err != nil {
		t.Fatal(err)
	}
	if len(ours.Groups) != 1 || len(ours.Groups[0].Rules) != len(theirs) || len(theirs) < 10 {
		t.Fatalf("%d groups; %d alarms in the chart", len(ours.Groups), len(theirs))
	}
	for i, r := range ours.Groups[0].Rules {
		c := theirs[i]
		if r.Alert != c.Alert || r.For != c.For || r.Labels["severity"] != c.Labels["severity"] {
			t.Errorf("%s is not as in the chart", r.Alert)
		}
		if _, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s says too little", r.Alert)
		}
	}
}

// What is said of pods only is not written into a file for who has none.
func TestPodsAreRefused(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"values.yaml":       "prometheusRule: {thresholds: {wait: 30}}\n",
		"files/alarms.yaml": "- alert: X\n  expr: up > ${wait}\n  annotations: {summary: \"of pod {{ $labels.pod }}\"}\n",
	} {
		if err := os.MkdirAll(dir+"/files", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rules(dir); err == nil || !strings.Contains(err.Error(), "only for pods") {
		t.Errorf("got %v", err)
	}
}
