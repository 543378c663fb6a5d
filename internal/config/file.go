package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds what is read of a file.
const maxFile = 1 << 20

// setting is one line of the file.
type setting struct {
	key    string
	values []string
	line   int
}

func readFile(path string) ([]setting, error) {
	text, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read the config file: %w", err)
	}
	var doc, next yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	if err := documents.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more than one YAML document (---): keep one", path)
	}
	if len(doc.Content) == 0 { // empty, or comments only
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s, line %d: must be lines of KEY: VALUE", path, root.Line)
	}
	var settings []setting
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if before, ok := seen[k.Value]; ok {
			return nil, fmt.Errorf("%s, line %d: %s is there already, in line %d", path, k.Line, k.Value, before)
		}
		seen[k.Value] = k.Line
		values, err := scalars(v)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %s %w", path, v.Line, k.Value, err)
		}
		settings = append(settings, setting{key: k.Value, values: values, line: k.Line})
	}
	return settings, nil
}

// scalars are the values as they were written: a flag parses them better than
// YAML does ("10s", "0660").
func scalars(v *yaml.Node) ([]string, error) {
	switch {
	case v.Kind == yaml.ScalarNode && v.Tag == "!!null":
		return nil, errors.New("has no value")
	case v.Kind == yaml.ScalarNode:
		return []string{v.Value}, nil
	case v.Kind == yaml.SequenceNode:
		values := []string{}
		for _, item := range v.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, errors.New("must be a list of plain values")
			}
			values = append(values, item.Value)
		}
		return values, nil
	default:
		return nil, errors.New("must be a plain value or a list of them")
	}
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, err
}
