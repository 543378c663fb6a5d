package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// The parts of CycloneDX 1.6 that are used here: https://cyclonedx.org/docs/1.6/json/.
type (
	bom struct {
		Format       string          `json:"bomFormat"`
		Spec         string          `json:"specVersion"`
		Serial       string          `json:"serialNumber"`
		Version      int             `json:"version"`
		Metadata     bomMetadata     `json:"metadata"`
		Components   []bomComponent  `json:"components"`
		Dependencies []bomDependency `json:"dependencies"`
	}
	bomMetadata struct {
		Timestamp string       `json:"timestamp"`
		Component bomComponent `json:"component"`
	}
	bomComponent struct {
		Type       string         `json:"type"`
		Ref        string         `json:"bom-ref"`
		Name       string         `json:"name"`
		Version    string         `json:"version"`
		Hashes     []bomHash      `json:"hashes,omitempty"`
		Licenses   []bomLicense   `json:"licenses,omitempty"`
		PURL       string         `json:"purl"`
		References []bomReference `json:"externalReferences,omitempty"`
		Properties []bomProperty  `json:"properties,omitempty"`
	}
	bomHash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	bomLicense struct {
		License    *bomLicenseID `json:"license,omitempty"`
		Expression string        `json:"expression,omitempty"`
	}
	bomLicenseID struct {
		ID string `json:"id"`
	}
	bomReference struct {
		Type string `json:"type"`
		URL  string `json:"url"`
	}
	bomProperty struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	bomDependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

// bill is the bill of materials of a binary: the modules that its build info names.
func (r *release) bill(binary, name string, used []dependency) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	program := bomComponent{
		Type:       "application",
		Name:       "locksidecar",
		Version:    "v" + r.version,
		PURL:       "pkg:golang/" + module + "@v" + r.version,
		Hashes:     []bomHash{{"SHA-256", fmt.Sprintf("%x", sum)}},
		Licenses:   licenses([]string{"Apache-2.0"}),
		References: []bomReference{{"vcs", url}},
		Properties: []bomProperty{{"locksidecar:revision", r.revision}},
	}
	program.Ref = program.PURL
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || strings.HasPrefix(s.Key, "-") && s.Key != "-ldflags" {
			program.Properties = append(program.Properties, bomProperty{"go:build:" + s.Key, s.Value})
		}
	}
	b := bom{
		Format: "CycloneDX",
		Spec:   "1.6",
		// The same program has the same bill: the number comes from its checksum.
		Serial:  serial(sha256.Sum256(append(sum[:], name...))),
		Version: 1,
		Metadata: bomMetadata{
			Timestamp: r.created.Format(time.RFC3339),
			Component: program,
		},
	}
	needs := bomDependency{Ref: program.Ref}
	for _, d := range used {
		c := bomComponent{
			Type:     "library",
			Name:     d.path,
			Version:  d.version,
			PURL:     "pkg:golang/" + d.path + "@" + strings.ReplaceAll(d.version, "+", "%2B"),
			Licenses: licenses(d.licenses),
		}
		c.Ref = c.PURL
		b.Components = append(b.Components, c)
		b.Dependencies = append(b.Dependencies, bomDependency{Ref: c.Ref})
		needs.DependsOn = append(needs.DependsOn, c.Ref)
	}
	b.Dependencies = append(b.Dependencies, needs)
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

func licenses(ids []string) []bomLicense {
	if len(ids) == 1 {
		return []bomLicense{{License: &bomLicenseID{ids[0]}}}
	}
	return []bomLicense{{Expression: strings.Join(ids, " AND ")}}
}

// serial is a version 8 UUID (RFC 9562) of a checksum.
func serial(sum [32]byte) string {
	u := sum[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
