// Command valuesdoc writes the table of values into a chart's README.md, between
// the marks there, from the comments "# -- …" of its values.yaml.
//
//	go run ./valuesdoc ../../deploy/helm/locksidecar
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	begin = "<!-- values: begin (written by make generate) -->\n"
	end   = "<!-- values: end -->\n"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: valuesdoc CHART")
		os.Exit(2)
	}
	readme := filepath.Join(os.Args[1], "README.md")
	text, err := updated(os.Args[1])
	if err == nil {
		err = os.WriteFile(readme, []byte(text), 0o644) //nolint:gosec // for everybody to read
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "valuesdoc:", err)
		os.Exit(1)
	}
}

// updated is the README with the table as it must be.
func updated(chart string) (string, error) {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml")) //nolint:gosec // whoever starts it names the chart
	if err != nil {
		return "", fmt.Errorf("read values: %w", err)
	}
	readme, err := os.ReadFile(filepath.Join(chart, "README.md")) //nolint:gosec // whoever starts it names the chart
	if err != nil {
		return "", fmt.Errorf("read the README: %w", err)
	}
	table, err := table(values)
	if err != nil {
		return "", err
	}
	before, rest, ok := strings.Cut(string(readme), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", errors.New("README.md lacks the marks that the table goes between")
	}
	return before + begin + table + end + after, nil
}

// table has a row for each value with a comment. A value without one must be a
// map whose own values have them.
func table(values []byte) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return "", fmt.Errorf("parse values: %w", err)
	}
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	if err := rows(&b, "", doc.Content[0]); err != nil {
		return "", err
	}
	return b.String(), nil
}

func rows(b *strings.Builder, prefix string, m *yaml.Node) error {
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		name := prefix + key.Value
		comment, documented := strings.CutPrefix(key.HeadComment, "# -- ")
		switch {
		case documented:
			var v any
			if err := value.Decode(&v); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			text, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, text, strings.ReplaceAll(comment, "\n# ", " "))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			if err := rows(b, name+".", value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("line %d: %s has no comment that begins with \"# -- \"", key.Line, name)
		}
	}
	return nil
}
