package main

import (
	"fmt"
	"maps"
	"strings"
)

// limits are what the sidecar accepts in the fields of requests, by their names in
// JSON: session/check.go, lock/resource.go and localapi/service.go check it. A length
// is in bytes there and in characters here, which is the same for ASCII.
var limits = map[string]object{
	"resource":   {"minLength": 1, "maxLength": 512, "pattern": `^[^\u0000-\u001f\u007f-\u009f]+$`},
	"prefix":     {"maxLength": 512},
	"resources":  {"maxItems": 16},
	"session_id": {"minLength": 1},
	"lock_id":    {"minLength": 1},
	"request_id": {"minLength": 1, "maxLength": 128}, // of Cancel, in the path
	"requestId":  {"maxLength": 128},
	"owner":      {"maxLength": 128},
	"name":       {"maxLength": 128},
	"limit":      {"minimum": 1, "maximum": 1024},
	"pageSize":   {"minimum": 0, "maximum": 1000},
	"pageToken":  {"pattern": `^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2,3})?$`},
	"ttl":        {"pattern": seconds(fromTenth, 3600)},
	"handle":     {"maxLength": 725},
	"maxHold":    {"pattern": seconds(fromTenth, 86400)},
	"minHold":    {"pattern": seconds(fromTenth, 86400)},
	"wait":       {"pattern": seconds(fromZero, 86400)},
	"interval":   {"pattern": seconds(fromTenth, 60)},
	"grace":      {"pattern": seconds(fromZero, 60)},
	"note":       {"maxLength": 1024, "pattern": `^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*$`},
	"states":     {"pattern": "^((UNKNOWN|FAILED|SUCCEEDED)(,(UNKNOWN|FAILED|SUCCEEDED))*)?$"},
}

// onceLimits are those of the fields of Once.
var onceLimits = map[string]object{
	"keep":        {"pattern": seconds(fromOne, 400*86400)},
	"maxAttempts": {"minimum": 0, "maximum": 1<<31 - 1},
}

// oneOrSeveral says that a request is for a resource or for resources.
func oneOrSeveral(schema, properties object) {
	several := properties["resources"].(object)
	name := maps.Clone(limits["resource"])
	name["type"] = "string"
	several["items"] = name
	delete(properties["resource"].(object), "minLength")
	properties["resource"].(object)["pattern"] = `^[^\u0000-\u001f\u007f-\u009f]*$`
	schema["anyOf"] = []any{
		object{"required": []string{"resource"}, "properties": object{"resource": object{"type": "string", "minLength": 1}, "resources": object{"maxItems": 0}}},
		object{"required": []string{"resources"}, "properties": object{
			"resources": object{"type": "array", "minItems": 2, "maxItems": 16, "uniqueItems": true},
			"resource":  object{"enum": []any{nil, ""}}, "reentrant": object{"enum": []any{nil, false}},
		}},
		attach,
	}
	for _, one := range schema["anyOf"].([]any)[:2] {
		one.(object)["properties"].(object)["handle"] = object{"enum": []any{nil, ""}}
	}
}

// attach says that a request has a handle, and what it must not have beside it.
var attach = object{"required": []string{"handle"}, "properties": object{
	"handle":     object{"type": "string", "minLength": 1},
	"resource":   object{"enum": []any{nil, ""}},
	"resources":  object{"maxItems": 0},
	"mode":       object{"enum": []any{"EXCLUSIVE", "MODE_UNSPECIFIED", 0, 1, nil}},
	"limit":      object{"type": "null"},
	"reentrant":  object{"enum": []any{nil, false}},
	"once":       object{"type": "null"},
	"minHold":    object{"type": "null"},
	"detachable": object{"enum": []any{nil, false}},
}}

// detachTTL is the ttl of a detached hold.
var detachTTL = object{"pattern": seconds(fromOne, 86400)}

// detachable says what goes with it.
var detachable = object{
	"if": object{"properties": object{"detachable": object{"const": true}}, "required": []string{"detachable"}},
	"then": object{"properties": object{
		"resources": object{"maxItems": 0}, "reentrant": object{"enum": []any{nil, false}},
		"once": object{"type": "null"}, "minHold": object{"type": "null"},
	}},
}

// permits says what goes with a limit, and with a minHold, and that a permit has a limit.
func permits(schema object) {
	given := func(name string, value object) object {
		return object{"properties": object{name: value}, "required": []string{name}}
	}
	schema["allOf"] = []any{
		object{"if": given("limit", object{"type": "integer"}), "then": object{"properties": object{
			"mode":      object{"enum": []any{"PERMIT", "MODE_UNSPECIFIED", 0, 3, nil}},
			"reentrant": object{"enum": []any{false, nil}},
			"resources": object{"maxItems": 0},
			"once":      object{"type": "null"},
		}}},
		object{"if": given("mode", object{"enum": []any{"PERMIT", 3}}), "then": given("limit", object{"type": "integer"})},
		detachable,
		object{"if": given("minHold", object{"type": "string"}), "then": object{"properties": object{"resources": object{"maxItems": 0}}}},
	}
}

// limit writes the limits of a field into its schema.
func limit(name string, schema any) {
	if s, ok := schema.(object); ok {
		maps.Copy(s, limits[name])
	}
}

// orNull lets a field be null, which is the same as leaving it out, and an enum a number.
// So does the JSON mapping of proto3.
func (d *document) orNull(schema any) object {
	s := schema.(object)
	name := refOf(s)
	if name == "" {
		s["type"] = []any{s["type"], "null"}
		return s
	}
	is := []any{object{"$ref": name}}
	if values, isEnum := d.Components.Schemas[strings.TrimPrefix(name, refPrefix)]["enum"].([]any); isEnum {
		is = append(is, object{"type": "integer", "minimum": 0, "maximum": len(values) - 1, "description": "The number of a value in the proto file."})
	}
	either := object{"anyOf": append(is, object{"type": "null"})}
	if s["description"] != nil {
		either["description"] = s["description"]
	}
	return either
}

// refOf is what a schema refers to; empty: nothing.
func refOf(schema object) string {
	if all, ok := schema["allOf"].([]any); ok && len(all) == 1 { // what has a description of its own
		schema, _ = all[0].(object)
	}
	name, _ := schema["$ref"].(string)
	return name
}

// Where the times of a field begin: what is below a second, as a pattern.
const (
	fromZero  = `0(\.[0-9]{1,9})?|`
	fromTenth = `0\.[1-9][0-9]{0,8}|`
	fromOne   = ""
)

// seconds is the pattern of a time up to so many seconds.
func seconds(below string, most int) string {
	digits := fmt.Sprint(most)
	whole := []string{fmt.Sprintf("[1-9][0-9]{0,%d}", len(digits)-2)} // what is less than most
	for i, d := range digits {
		least := '0'
		if i == 0 {
			least = '1'
		}
		if d > least {
			whole = append(whole, fmt.Sprintf("%s[%c-%c][0-9]{%d}", digits[:i], least, d-1, len(digits)-i-1))
		}
	}
	return fmt.Sprintf(`^(%s(%s)(\.[0-9]{1,9})?|%d(\.0{1,9})?)s$`, below, strings.Join(whole, "|"), most)
}
