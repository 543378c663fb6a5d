package main

import (
	"strings"

	"google.golang.org/protobuf/types/descriptorpb"
)

// tidy makes running text of all comments in v.
func tidy(v any) {
	switch v := v.(type) {
	case object:
		for name, x := range v {
			if s, ok := x.(string); ok && (name == "description" || name == "summary" || name == "title") {
				v[name] = strings.Join(strings.Fields(s), " ")
			} else {
				tidy(x)
			}
		}
	case []any:
		for _, x := range v {
			tidy(x)
		}
	}
}

// split takes the first sentence of a comment as its summary.
func split(text string) (summary, description string) {
	text = strings.Join(strings.Fields(text), " ")
	if i := strings.Index(text, ". "); i > 0 {
		return text[:i+1], text
	}
	return text, text
}

// writeTimes says of the fields of m that are durations how they are written.
func writeTimes(properties any, m *descriptorpb.DescriptorProto) {
	p, ok := properties.(object)
	if !ok {
		return
	}
	for _, f := range m.GetField() {
		schema, ok := p[f.GetJsonName()].(object)
		if ok && f.GetTypeName() == ".google.protobuf.Duration" {
			schema["pattern"] = `^[0-9]+(\.[0-9]{1,9})?s$`
			schema["examples"] = []string{"2.5s"}
		}
	}
}

// describe gives a parameter of a path or query the description of its schema,
// where tools look for it.
func describe(parameter object) {
	if schema, ok := parameter["schema"].(object); ok && schema["description"] != nil {
		parameter["description"] = schema["description"]
		delete(schema, "description")
	}
}
