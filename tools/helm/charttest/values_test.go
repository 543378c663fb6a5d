package charttest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

func TestLint(t *testing.T) {
	version := &chartutil.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
	for _, v := range []string{`{injection: {apiVersion: admissionregistration.k8s.io/v1}}`, `{injection: {enabled: false}}`} {
		for _, m := range lint.AllWithKubeVersion(chartPlace, parse(t, v), "locks", version).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("helm lint: %s", m)
			}
		}
	}
}

// TestRefusals: what a user gets wrong is refused with words that help.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ name, cluster, values, want string }{
		{"a typo", "v1.36", `{injection: {failurePolic: Fail}}`, "additional properties 'failurePolic' not allowed"},
		{"a typo in a profile", "v1.36", `{profiles: {default: {tll: 5s}}}`, "additional properties 'tll' not allowed"},
		{"a typo in the store", "v1.36", `{profiles: {default: {store: {ulr: "redis://redis"}}}}`, "additional properties 'ulr' not allowed"},
		{"a duration without unit", "v1.36", `{profiles: {default: {ttl: 5}}}`, "got number, want string"},
		{"a profile's name", "v1.36", `{profiles: {My_Profile: {}}}`, "does not match pattern"},
		{"a password", "v1.36", `{profiles: {default: {store: {url: "redis://app:secret@redis"}}}}`, "has a password in store.url"},
		{"a password with a slash", "v1.36", `{profiles: {default: {store: {url: "redis://app:se/cret@redis"}}}}`, "has a password in store.url"},
		{"a password of one of several shards", "v1.36", `{profiles: {default: {store: {url: ["redis://redis-1", "redis://app:secret@redis-2"]}}}}`, "has a password in store.url"},
		{"a password of the Sentinels", "v1.36", `{profiles: {default: {store: {url: "redis+sentinel://app@s1,s2/main?timeout=1s&sentinel-password=secret"}}}}`, "has a password in store.url"},
		{"a password of the Sentinels, disguised", "v1.36", `{profiles: {default: {store: {url: "redis+sentinel://s1/main?sentinel%2Dpassword=secret"}}}}`, "has a password in store.url"},
		{"a store that is not known", "v1.36", `{profiles: {default: {store: {url: "foo:bar"}}}}`, "does not match pattern"},
		{"a store without a host", "v1.36", `{profiles: {default: {store: {url: "redis:"}}}}`, "does not match pattern"},
		{"a ttl too short", "v1.36", `{profiles: {default: {ttl: 1ms}}}`, `Profile "default" has the ttl 1ms: must be 500ms to 10m`},
		{"a ttl too long", "v1.36", `{profiles: {default: {ttl: 9m60.5s}}}`, "must be 500ms to 10m"},
		{"no grace", "v1.36", `{profiles: {default: {lostGrace: 0s}}}`, "lostGrace 0s: must be more than 0"},
		{"a long park", "v1.36", `{profiles: {default: {park: 10001ms}}}`, "must be 0s to 10s"},
		{"more than a duration can be", "v1.36", `{profiles: {default: {drain: 9999999999m}}}`, "does not match pattern"},
		{"a socket for nobody", "v1.36", `{profiles: {default: {socketMode: "0000"}}}`, "does not match pattern"},
		{"no such user", "v1.36", `{profiles: {default: {runAsUser: 4000000000}}}`, "/profiles/default/runAsUser': maximum"},
		{"a memory limit below the request", "v1.36", `{profiles: {default: {resources: {limits: {memory: 16Mi}}}}}`, `requests 32Mi of memory and has a limit of 16Mi`},
		{"a CPU limit below the request", "v1.36", `{profiles: {default: {resources: {requests: {cpu: 0.5}, limits: {cpu: 499m}}}}}`, "requests 0.5 of cpu and has a limit of 499m"},
		{"two stores", "v1.36", `{profiles: {default: {store: {url: "redis://redis", secret: {name: redis}}}}}`, "two ways to say one thing"},
		{"a key without a Secret", "v1.36", `{profiles: {default: {store: {url: "redis://redis", files: {password: p}}}}}`, "no store.files.secret"},
		{"a variable of ours", "v1.36", `{profiles: {default: {env: {LOCKSIDECAR_TTL: 5s}}}}`, "that variable is the chart's"},
		{"two lines", "v1.36", `{profiles: {default: {env: {A: "a\nLOCKSIDECAR_STORE=embedded:"}}}}`, "does not match pattern"},
		{"two places for a variable", "v1.36", `{profiles: {default: {env: {A: {secretKeyRef: {name: s, key: k}, fieldRef: {fieldPath: spec.nodeName}}}}}}`, "takes the variable A from fieldRef and secretKeyRef"},
		{"a place that is none", "v1.36", `{profiles: {default: {env: {A: {resourceFieldRef: {}}}}}}`, "additional properties 'resourceFieldRef' not allowed"},
		{"an annotation that is none", "v1.36", `{profiles: {default: {overrides: [profile]}}}`, "/profiles/default/overrides/0"},
		{"no such default", "v1.36", `{defaultProfile: other}`, `defaultProfile is "other", which is not among the profiles: default`},
		{"an old cluster", "v1.29", ``, "does not serve MutatingAdmissionPolicy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := render(theChart(t), parse(t, c.values), c.cluster)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestWhatEverybodyMustSet: the chart as it is in the repository has no image that
// somebody else could publish and no store that no two pods share, and says what to set.
func TestWhatEverybodyMustSet(t *testing.T) {
	for _, c := range []struct{ name, values, want string }{
		{"no store", `{profileDefaults: {image: {repository: registry.example/locksidecar}}}`, `Profile "default" has no store. Set profiles.default.store.url`},
		{"another profile", `{profileDefaults: {image: {repository: registry.example/locksidecar}}, profiles: {billing: {store: {url: "redis://redis"}}}}`, `Profile "default" has no store`},
		{"files of no store", `{profileDefaults: {image: {repository: registry.example/locksidecar}, store: {url: "redis://redis"}}, profiles: {default: {store: {files: {secret: redis}}}}}`, `Profile "default" has no store`},
		{"no image", `{profileDefaults: {store: {url: "embedded:"}}}`, "Set profileDefaults.image.repository to where your registry has it"},
		{"a profile without one", `{profileDefaults: {image: {repository: registry.example/locksidecar}, store: {url: "embedded:"}}, profiles: {other: {image: {repository: ""}}}}`, `Profile "other" has no image`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := render(load(t, chartPlace), parse(t, c.values), "v1.36")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestLimitsOfValues: what the sidecar takes at its limits, the chart takes too.
func TestLimitsOfValues(t *testing.T) {
	for _, v := range []string{
		`{ttl: 500ms}`, `{ttl: 9m59.5s500ms}`, `{lostGrace: 1ms}`, `{park: 10s}`, `{park: 0s}`, `{drain: 0s}`, `{socketMode: "0001"}`, `{socketMode: "0777"}`,
		`{runAsUser: 2147483647}`, `{resources: {limits: {cpu: 10m, memory: 33554432}}}`, `{resources: {requests: {memory: ""}, limits: {memory: 16Mi}}}`,
	} {
		if _, err := render(theChart(t), parse(t, "{profileDefaults: "+v+"}"), "v1.36"); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
}

// TestEveryStoreIsAValue: the schema takes each kind of URL that the sidecar knows.
func TestEveryStoreIsAValue(t *testing.T) {
	list := regexp.MustCompile(`(?m)^var Schemes = \[\]string\{(.*)\}$`)
	var schemes []string
	err := filepath.WalkDir("../../../backends", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, found := range list.FindAllSubmatch(text, -1) {
			schemes = append(schemes, strings.Split(strings.ReplaceAll(string(found[1]), `"`, ""), ", ")...)
		}
		return err
	})
	if err != nil || len(schemes) < 10 {
		t.Fatalf("the sidecar knows %v, %v", schemes, err)
	}
	for _, scheme := range schemes {
		v := values{"profileDefaults": values{"store": values{"url": scheme + "://store/main"}}}
		if _, err := render(theChart(t), v, "v1.36"); err != nil {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}

// TestTemplateRefusals is the same for the templates of app charts.
func TestTemplateRefusals(t *testing.T) {
	for _, c := range []struct{ name, argument, want string }{
		{"a typo", `(dict "chart" .Subcharts.locksidecar "tll" "5s")`, `the templates take no "tll"`},
		{"a ttl too short", `(dict "chart" .Subcharts.locksidecar "ttl" "1ms")`, "has the ttl 1ms: must be 500ms to 10m"},
		{"no such profile", `(dict "chart" .Subcharts.locksidecar "profile" "orders")`, `There is no profile "orders". Values know these: default.`},
		{"no chart", `(dict "profile" "default")`, "need the chart as their argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			app := loadExample(t)
			app.Templates = app.Templates[:1]
			app.Templates[0].Data = []byte(`{{ include "locksidecar.container" ` + c.argument + ` }}`)
			_, err := render(app, values{}, "v1.29")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestEveryLimitIsAValue: what a sidecar of one's own can be limited to, one in a pod can
// as well.
func TestEveryLimitIsAValue(t *testing.T) {
	manual, err := os.ReadFile("../../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := render(theChart(t), parse(t, "profileDefaults:\n  "+indent(everyKey, 2)), "v1.36")
	if err != nil {
		t.Fatal(err)
	}
	ofNode, err := render(theChart(t), parse(t, nodeValues), "v1.36")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(objects)
	limits := regexp.MustCompile("(?m)^\\| `--max-[a-z-]+` \\| `(MAX_[A-Z_]+)`").FindAllStringSubmatch(string(manual), -1)
	if len(limits) < 5 {
		t.Errorf("the manual names only the limits %v", limits)
	}
	for _, l := range limits {
		if strings.HasSuffix(l[1], "_PER_SPACE") || strings.HasSuffix(l[1], "_PER_SERVICE_ACCOUNT") { // a pod's own sidecar has one of each
			if !strings.Contains(fmt.Sprint(ofNode), "- name: LOCKSIDECAR_"+l[1]+"\n") {
				t.Errorf("%s cannot be set for a node", l[1])
			}
			continue
		}
		if !strings.Contains(text, "LOCKSIDECAR_"+l[1]+"=") {
			t.Errorf("%s cannot be set", l[1])
		}
	}
}

// TestSchemaIsComplete: no object of the schema takes keys that it does not name,
// other than those whose keys are the user's own; and it names no key that
// values.yaml lacks.
func TestSchemaIsComplete(t *testing.T) {
	text, err := os.ReadFile(chartPlace + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	definitions, _ := schema["definitions"].(map[string]any)
	var walk func(at string, s map[string]any, v any)
	walk = func(at string, s map[string]any, v any) {
		if ref, ok := s["$ref"].(string); ok {
			s, _ = definitions[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
		}
		properties, _ := s["properties"].(map[string]any)
		if open, closed := s["additionalProperties"]; properties != nil && (!closed || open != false) {
			t.Errorf("%s takes any key", at)
		}
		have, isMap := v.(map[string]any)
		for key, p := range properties {
			if at == "" && key == "global" { // Helm gives it to every chart
				continue
			}
			value, ok := have[key]
			optional := strings.HasSuffix(at, ".requests") || strings.HasSuffix(at, ".limits")
			if isMap && !ok && !optional {
				t.Errorf("the schema knows %s.%s, values.yaml does not", at, key)
			}
			if p, ok := p.(map[string]any); ok {
				walk(at+"."+key, p, value)
			}
		}
	}
	walk("", schema, theChart(t).Values)
}
