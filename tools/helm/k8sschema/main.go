// Command k8sschema writes the JSON schemas that the chart's tests hold rendered
// objects against: deploy/helm/schemas/vX.Y.json, one file for each version of
// Kubernetes, reduced to the kinds that the charts render, and strict: a field
// that the API does not know is refused.
//
// The sources are modules: k8s.io/kubernetes has the OpenAPI description of its
// API, prometheus-operator has its CRDs. Only this command downloads them; tests
// read what it wrote.
//
//	go run ./k8sschema ../../deploy/helm/schemas
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// The versions that the chart is tested for: the oldest with native sidecars,
// one with MutatingAdmissionPolicy as a beta, the oldest that always has it.
var kubernetes = []string{"v1.29.6", "v1.34.4", "v1.36.3"}

const (
	operator   = "github.com/prometheus-operator/prometheus-operator"
	operatorAt = "v0.85.0"
)

// kinds are those that the charts render; a version may lack some.
var kinds = []string{
	"v1/ConfigMap", "v1/Pod", "v1/ServiceAccount", "apps/v1/DaemonSet", "apps/v1/Deployment", "batch/v1/CronJob", "storage.k8s.io/v1/CSIDriver",
	"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
	"admissionregistration.k8s.io/v1/MutatingAdmissionPolicyBinding",
	"admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy",
	"admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicyBinding",
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding",
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: k8sschema FOLDER")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "k8sschema:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, folder string) error {
	crds, err := customResources(ctx)
	if err != nil {
		return err
	}
	for _, version := range kubernetes {
		dir, err := module(ctx, "k8s.io/kubernetes", version)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, "api/openapi-spec/swagger.json")) //nolint:gosec // a module's own folder
		if err != nil {
			return fmt.Errorf("read the API of Kubernetes %s: %w", version, err)
		}
		doc, err := reduce(text, kinds)
		if err != nil {
			return fmt.Errorf("kubernetes %s: %w", version, err)
		}
		for kind, schema := range crds {
			doc.Kinds[kind] = schema
		}
		name := version[:strings.LastIndexByte(version, '.')] + ".json"
		if err := os.WriteFile(filepath.Join(folder, name), doc.text(), 0o644); err != nil { //nolint:gosec // for everybody to read
			return fmt.Errorf("write schemas: %w", err)
		}
	}
	return nil
}

// module downloads a module, unless it is here, and gives its folder.
func module(ctx context.Context, path, version string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path+"@"+version) //nolint:gosec // constants of this file
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var m struct{ Dir, Error string }
	if e := json.Unmarshal(out, &m); e != nil {
		return "", fmt.Errorf("download %s@%s: %w", path, version, errors.Join(err, e))
	}
	if m.Error != "" {
		return "", fmt.Errorf("download %s@%s: %s", path, version, m.Error)
	}
	return m.Dir, nil
}

// schema is a JSON schema as it came.
type schema = map[string]any

// document is a file of this command: kinds, and what they refer to.
type document struct {
	Kinds       map[string]schema // "apps/v1/Deployment"
	Definitions map[string]schema
}

// reduce picks kinds out of an OpenAPI description, and makes them strict.
func reduce(text []byte, kinds []string) (*document, error) {
	var api struct{ Definitions map[string]schema }
	if err := json.Unmarshal(text, &api); err != nil {
		return nil, fmt.Errorf("parse OpenAPI: %w", err)
	}
	d := &document{Kinds: map[string]schema{}, Definitions: map[string]schema{}}
	var take func(name string)
	take = func(name string) {
		if _, done := d.Definitions[name]; done {
			return
		}
		s := api.Definitions[name]
		d.Definitions[name] = s
		for _, ref := range strict(s) {
			take(ref)
		}
	}
	for name, s := range api.Definitions {
		gvks, _ := s["x-kubernetes-group-version-kind"].([]any)
		for _, one := range gvks {
			gvk, _ := one.(map[string]any)
			kind := strings.TrimPrefix(fmt.Sprintf("%s/%s/%s", gvk["group"], gvk["version"], gvk["kind"]), "/")
			if !slices.Contains(kinds, kind) {
				continue
			}
			required, _ := s["required"].([]any)
			s["required"] = append(required, "apiVersion", "kind", "metadata")
			take(name)
			d.Kinds[kind] = schema{"$ref": "#/definitions/" + name}
		}
	}
	return d, nil
}

// strict makes a schema refuse fields that it does not name, takes off what says
// nothing about validity, and gives the definitions that it refers to.
func strict(s schema) (refs []string) {
	for key, value := range s {
		if key == "description" || key == "default" || key == "title" || strings.HasPrefix(key, "x-kubernetes-") && key != "x-kubernetes-int-or-string" && key != "x-kubernetes-preserve-unknown-fields" {
			delete(s, key)
		}
		if ref, ok := value.(string); ok && key == "$ref" {
			refs = append(refs, strings.TrimPrefix(ref, "#/definitions/"))
		}
	}
	if properties, ok := s["properties"].(map[string]any); ok {
		for _, p := range properties {
			refs = append(refs, strict(p.(schema))...) //nolint:forcetypeassert // what OpenAPI says
		}
		if _, open := s["additionalProperties"]; !open && s["x-kubernetes-preserve-unknown-fields"] != true {
			s["additionalProperties"] = false
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if inner, ok := s[key].(schema); ok {
			refs = append(refs, strict(inner)...)
		}
	}
	if s["format"] == "int-or-string" || s["x-kubernetes-int-or-string"] == true {
		delete(s, "anyOf")
		s["type"] = []string{"integer", "string"}
	}
	delete(s, "format")
	delete(s, "x-kubernetes-int-or-string")
	delete(s, "x-kubernetes-preserve-unknown-fields")
	return refs
}

// customResources are the kinds of the Prometheus operator.
func customResources(ctx context.Context) (map[string]schema, error) {
	dir, err := module(ctx, operator, operatorAt)
	if err != nil {
		return nil, err
	}
	out := map[string]schema{}
	for _, name := range []string{"podmonitors", "prometheusrules"} {
		text, err := os.ReadFile(filepath.Join(dir, "example/prometheus-operator-crd/monitoring.coreos.com_"+name+".yaml")) //nolint:gosec // a module's own folder
		if err != nil {
			return nil, fmt.Errorf("read CRD: %w", err)
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return nil, fmt.Errorf("parse CRD %s: %w", name, err)
		}
		for _, v := range crd.Spec.Versions {
			s := v.Schema.OpenAPIV3Schema
			strict(s)
			// A CRD says nothing about metadata; Kubernetes does.
			s["properties"].(map[string]any)["metadata"] = schema{"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"} //nolint:forcetypeassert // every CRD has properties
			s["required"] = append(s["required"].([]any), "apiVersion", "kind", "metadata")                                                //nolint:forcetypeassert // spec is required
			out[crd.Spec.Group+"/"+v.Name+"/"+crd.Spec.Names.Kind] = s
		}
	}
	return out, nil
}

// text is the document with one definition a line, so that a change of one
// version to the next can be read.
func (d *document) text() []byte {
	var b bytes.Buffer
	section := func(title string, entries map[string]schema, end string) {
		fmt.Fprintf(&b, "%q: {\n", title)
		names := make([]string, 0, len(entries))
		for name := range entries {
			names = append(names, name)
		}
		slices.Sort(names)
		for i, name := range names {
			line, err := json.Marshal(entries[name])
			if err != nil {
				panic(err) // it was JSON
			}
			comma := ","
			if i == len(names)-1 {
				comma = ""
			}
			fmt.Fprintf(&b, "%q: %s%s\n", name, line, comma)
		}
		b.WriteString(end)
	}
	b.WriteString("{\n")
	section("kinds", d.Kinds, "},\n")
	section("definitions", d.Definitions, "}\n}\n")
	return b.Bytes()
}
