package charttest

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// known are the metrics that docs/observing.md has, with the labels that are in
// its table.
func known(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ := strings.Cut(text2, "\n## ")
	names := map[string]bool{"up": true, "process_resident_memory_bytes": true, "process_cpu_seconds_total": true}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (\\w+) \\|").FindAllStringSubmatch(section, -1) {
		name := "locksidecar_" + row[1]
		if row[2] == "histogram" {
			names[name+"_bucket"], names[name+"_count"], names[name+"_sum"] = true, true, true
			continue
		}
		names[name] = true
	}
	if len(names) < 20 {
		t.Fatalf("only %d metrics found in docs/observing.md", len(names))
	}
	return names
}

// query fails for what Prometheus would not take, for metrics that there are
// not, and for those of other jobs.
func query(t *testing.T, names map[string]bool, where, text string) {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		if !names[s.Name] {
			t.Errorf("%s: docs/observing.md has no metric %s", where, s.Name)
		}
		ours := false
		for _, m := range s.LabelMatchers {
			ours = ours || m.Name == "job" && m.Type == labels.MatchEqual && m.Value == "locksidecar"
		}
		if !ours {
			t.Errorf(`%s: %s is not of job="locksidecar"`, where, s.Name)
		}
		return nil
	})
}

const monitoring = `{injection: {enabled: false}, podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}`

// ruleFile is as much of a PrometheusRule's spec as the test looks at.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func TestAlarms(t *testing.T) {
	names := known(t)
	alarms := 0
	for _, o := range objects(t, theChart(t), parse(t, monitoring), "v1.36") {
		if o["kind"] != "PrometheusRule" {
			continue
		}
		for _, r := range spec[ruleFile](t, o["spec"]).Groups[0].Rules {
			alarms++
			query(t, names, r.Alert, r.Expr)
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s says too little", r.Alert)
			}
		}
	}
	if alarms < 10 {
		t.Errorf("%d alarms", alarms)
	}
}

// grafana is as much of a dashboard as the test looks at.
type grafana struct {
	Panels []struct {
		ID      int
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

// asGrafana puts in what Grafana does for variables that are All.
var asGrafana = strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*", "$pod", ".*")

func theDashboard(t *testing.T) (d grafana) {
	t.Helper()
	for _, o := range objects(t, theChart(t), parse(t, monitoring), "v1.36") {
		if o["kind"] == "ConfigMap" {
			data := spec[map[string]string](t, o["data"])
			if err := json.Unmarshal([]byte(data["locksidecar.json"]), &d); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(d.Panels) < 10 {
		t.Fatalf("%d panels", len(d.Panels))
	}
	return d
}

// TestDashboard: the dashboard is JSON with queries that Prometheus takes.
func TestDashboard(t *testing.T) {
	names, d := known(t), theDashboard(t)
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if len(p.Targets) == 0 {
			t.Errorf("%s asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			query(t, names, p.Title, asGrafana.Replace(q.Expr))
		}
	}
	for _, v := range d.Templating.List {
		if selector, _, ok := strings.Cut(strings.TrimPrefix(v.Definition, "label_values("), ", "+v.Name+")"); ok {
			query(t, names, "variable "+v.Name, asGrafana.Replace(selector))
		} else if v.Definition != "" {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
		}
	}
}

// spec makes a part of an object one of its type.
func spec[T any](t *testing.T, part any) (v T) {
	t.Helper()
	text, err := json.Marshal(part)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}
