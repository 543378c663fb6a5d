package localapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// What openapi.json says about errors and paths is what is served.
func TestOpenAPI(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct{ Description string }
		}
		Components struct {
			Schemas map[string]struct {
				Properties struct {
					Details struct {
						Items struct {
							Properties struct{ Reason struct{ Enum []string } }
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal(pb.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for r := range httpOf {
		reasons = append(reasons, string(r))
	}
	slices.Sort(reasons)
	listed := slices.Sorted(slices.Values(doc.Components.Schemas["google.rpc.Status"].Properties.Details.Items.Properties.Reason.Enum))
	if d := cmp.Diff(reasons, listed); d != "" {
		t.Error(d)
	}
	for path, operations := range doc.Paths {
		for method, o := range operations {
			for code, a := range o.Responses {
				for _, r := range reasons {
					if strings.Contains(a.Description, r+": ") && code != strconv.Itoa(httpOf[reason(r)]) {
						t.Errorf("%s %s: %s has %s", method, path, r, code)
					}
				}
			}
		}
	}
	if len(codeOf) != len(httpOf) {
		t.Errorf("%d reasons have a gRPC code, %d an HTTP status", len(codeOf), len(httpOf))
	}
	var want []string
	s := New(Options{})
	for _, r := range s.table(&service{Server: s}) {
		path := "/" + strings.ReplaceAll(strings.Join(r.path, "/"), "=**", "")
		if r.verb != "" {
			path += ":" + r.verb
		}
		want = append(want, path)
	}
	want = append(want, "/healthz", "/readyz", "/metrics", "/openapi.json")
	slices.Sort(want)
	if d := cmp.Diff(slices.Compact(want), slices.Sorted(maps.Keys(doc.Paths))); d != "" {
		t.Error(d)
	}
}
