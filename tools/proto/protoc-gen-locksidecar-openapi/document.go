package main

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/descriptorpb"
)

// object is a JSON object. Its keys are written in alphabetical order.
type object = map[string]any

// document is an OpenAPI document, as far as it matters here.
type document struct {
	OpenAPI    string                       `json:"openapi"`
	Info       object                       `json:"info"`
	Servers    []object                     `json:"servers"`
	Paths      map[string]map[string]object `json:"paths"`
	Components struct {
		Schemas map[string]object `json:"schemas"`
	} `json:"components"`
}

const (
	jsonType   = "application/json"
	linesType  = "application/x-ndjson"
	statusName = "google.rpc.Status"
	refPrefix  = "#/components/schemas/"
)

// failure is one kind of error, as in localapi/errors.go.
type failure struct{ http, reason, when string }

var failures = []failure{
	{"400", "INVALID_REQUEST", "a field is refused; metadata: field"},
	{"403", "PERMISSION_DENIED", "the uid or gid is not allowed"},
	{"404", "SESSION_NOT_FOUND", "the session has ended, belongs to another user, or never was"},
	{"404", "NO_SUCH_CALL", "there is no such path; with 405, no such method on it"},
	{"409", "ALREADY_DONE", "it has succeeded before; metadata: resource, state, attempt, note, at, lock_id, fence, session, sidecar, pid, owner"},
	{"409", "LOCK_HELD", "wait is 0s and the lock is not free; metadata: resource, holder_pid, holder_uid, holder_session, holder_sidecar, holder_age, holder_mode, holder_fence, holder_kept_for"},
	{"409", "DEADLOCK", "owners wait for each other, and this one asked last; it keeps what it holds; metadata: resource, cycle_length"},
	{"410", "LOCK_LOST", "the hold is over though nobody released it; metadata: resource, lock_id, fence, lost_reason"},
	{"412", "ATTEMPTS_EXHAUSTED", "it was tried max_attempts times; metadata as for ALREADY_DONE"},
	{"412", "NOT_HOLDER", "the lock_id was released before, or is not of this session or resource; or there is no detached hold of the handle"},
	{"412", "UPGRADE_REFUSED", "a SHARED hold cannot become EXCLUSIVE"},
	{"429", "LIMIT_EXCEEDED", "too many sessions, holds, waiters or connections, or too large a message; metadata: limit, max"},
	{"499", "CANCELLED", "the call ended before it was answered"},
	{"500", "INTERNAL", "a mistake of the sidecar's, which is in its log"},
	{"501", "UNSUPPORTED", "this store cannot do it"},
	{"503", "STORE_UNAVAILABLE", "the store does not answer"},
	{"503", "DRAINING", "the sidecar stops and takes no new work"},
	{"504", "WAIT_TIMEOUT", "waited in vain; metadata as for LOCK_HELD, and position"},
}

// extraErrors tells which errors a call can have beside those that any can have.
var extraErrors = map[string][]string{
	"Hold":          {"NOT_HOLDER", "LOCK_HELD", "LOCK_LOST", "WAIT_TIMEOUT", "STORE_UNAVAILABLE", "DRAINING", "CANCELLED"},
	"OpenSession":   {"DRAINING"},
	"KeepAlive":     {"SESSION_NOT_FOUND"},
	"CloseSession":  {"SESSION_NOT_FOUND"},
	"Cancel":        {"SESSION_NOT_FOUND"},
	"Acquire":       {"SESSION_NOT_FOUND", "NOT_HOLDER", "LOCK_HELD", "LOCK_LOST", "WAIT_TIMEOUT", "UPGRADE_REFUSED", "DEADLOCK", "ALREADY_DONE", "ATTEMPTS_EXHAUSTED", "UNSUPPORTED", "STORE_UNAVAILABLE", "CANCELLED"},
	"Release":       {"SESSION_NOT_FOUND", "NOT_HOLDER", "LOCK_LOST", "STORE_UNAVAILABLE"},
	"Extend":        {"SESSION_NOT_FOUND", "NOT_HOLDER", "LOCK_LOST"},
	"Detach":        {"SESSION_NOT_FOUND", "NOT_HOLDER", "LOCK_LOST", "STORE_UNAVAILABLE"},
	"ExtendHandle":  {"NOT_HOLDER", "UNSUPPORTED", "STORE_UNAVAILABLE"},
	"ReleaseHandle": {"NOT_HOLDER", "UNSUPPORTED", "STORE_UNAVAILABLE"},
	"Downgrade":     {"SESSION_NOT_FOUND", "NOT_HOLDER", "LOCK_LOST", "STORE_UNAVAILABLE"},
	"Events":        {"SESSION_NOT_FOUND"},
	"GetLock":       {"STORE_UNAVAILABLE"},
	"ListLocks":     {"STORE_UNAVAILABLE"},
	"WatchLocks":    {"STORE_UNAVAILABLE"},
	"GetLeader":     {"STORE_UNAVAILABLE"},
	"WatchLeader":   {"STORE_UNAVAILABLE"},
	"ForceRelease":  {"NOT_HOLDER", "STORE_UNAVAILABLE", "CANCELLED"},
	"ListOutcomes":  {"UNSUPPORTED", "STORE_UNAVAILABLE"},
	"ResetOutcome":  {"LOCK_HELD", "UNSUPPORTED", "STORE_UNAVAILABLE"},
}

// commonErrors any call can have.
var commonErrors = []string{"INVALID_REQUEST", "PERMISSION_DENIED", "LIMIT_EXCEEDED", "INTERNAL"}

// onlyElsewhere are fields of a message that a call does not take in its body.
var onlyElsewhere = map[string][]string{
	"Hold":    {"sessionId", "once"},
	"Acquire": {"name", "metadata"},
}

// needed are the fields without which a call is refused, where all of its fields are.
var needed = map[string][]string{
	"Detach":        {"ttl"},
	"ExtendHandle":  {"handle", "ttl"},
	"ReleaseHandle": {"handle"},
}

func (d *document) finish(api *descriptorpb.FileDescriptorProto) {
	d.Info = object{
		"title":   "locksidecar",
		"version": "v1",
		"summary": "Distributed locks for one app, through the sidecar beside it, over a Unix socket.",
		"description": "For example: curl -N --unix-socket /run/locksidecar/locksidecar.sock http://localhost/v1/hold -d '{\"resource\":\"orders/42\"}' " +
			"holds the lock until curl ends. The same calls are there as gRPC on the same socket. " +
			"Bodies are JSON whatever Content-Type says. An unknown field is refused; null is the same as a field that is left out. Lengths are limited in bytes of UTF-8.",
		"license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
	}
	d.Servers = []object{{"url": "http://localhost", "description": "Over the sidecar's Unix socket; the host name does not matter."}}

	messages := make(map[string]*descriptorpb.DescriptorProto)
	for _, m := range api.GetMessageType() {
		messages[m.GetName()] = m
	}
	for name, s := range d.Components.Schemas {
		tidy(s)
		if m := messages[strings.TrimPrefix(name, api.GetPackage()+".")]; m != nil {
			writeTimes(s["properties"], m)
		}
		if name == api.GetPackage()+".Once" { // part of a request
			s["additionalProperties"] = false
			properties := s["properties"].(object)
			for field, of := range properties {
				maps.Copy(of.(object), onceLimits[field])
				properties[field] = d.orNull(of)
			}
		}
		if name == statusName {
			d.Components.Schemas[name] = statusSchema()
		}
	}
	methods := make(map[string]*descriptorpb.MethodDescriptorProto)
	for _, m := range api.GetService()[0].GetMethod() {
		methods[m.GetName()] = m
	}
	for path, operations := range d.Paths {
		for _, o := range operations {
			name := strings.TrimPrefix(o["operationId"].(string), "LockSidecar_")
			m := methods[name]
			d.finishOperation(o, name, path, m.GetServerStreaming(), messages[m.GetInputType()[strings.LastIndexByte(m.GetInputType(), '.')+1:]])
		}
	}
	d.addPlain()
}

func (d *document) finishOperation(o object, name, path string, stream bool, input *descriptorpb.DescriptorProto) {
	tidy(o)
	o["operationId"] = name
	o["tags"] = []string{tagOf(path)}
	o["summary"], o["description"] = split(o["summary"].(string))
	if parameters, ok := o["parameters"].([]any); ok {
		for _, p := range parameters {
			p := p.(object)
			writeTimes(object{p["name"].(string): p["schema"]}, input)
			describe(p)
			if p["name"] == "outcome" { // as far as a release takes them
				p["schema"] = object{"type": "string", "enum": []string{"FAILED", "SUCCEEDED"}}
			}
			limit(p["name"].(string), p["schema"])
			if p["name"] == "resource" {
				p["description"] = "The name of the resource; slashes may be escaped or not."
			}
		}
	}
	if body, ok := o["requestBody"].(object); ok {
		schema := body["content"].(object)[jsonType].(object)["schema"].(object)
		if properties, ok := schema["properties"].(object); ok {
			writeTimes(properties, input)
			for _, field := range onlyElsewhere[name] {
				delete(properties, field)
			}
			for field, s := range properties {
				limit(field, s)
				if field == "ttl" && name != "OpenSession" {
					maps.Copy(s.(object), detachTTL)
				}
				if needed[name] != nil {
					continue
				}
				if field == "resource" && properties["resources"] == nil || name == "Extend" {
					schema["required"] = []string{field}
				} else {
					properties[field] = d.orNull(s)
				}
			}
			if properties["resources"] != nil {
				oneOrSeveral(schema, properties)
				permits(schema)
			}
			if name == "Acquire" {
				schema["if"] = object{"properties": object{"once": object{"type": "object"}}, "required": []string{"once"}}
				schema["then"] = object{"properties": object{
					"mode":      object{"enum": []any{"EXCLUSIVE", "MODE_UNSPECIFIED", 0, 1, nil}},
					"reentrant": object{"enum": []any{false, nil}},
					"resources": object{"maxItems": 0},
				}}
			}
			if name == "OpenSession" {
				schema["if"] = object{"properties": object{"liveness": object{"enum": []any{"TTL", 3}}}, "required": []string{"liveness"}}
				schema["then"] = object{"properties": object{"ttl": object{"type": "string"}}, "required": []string{"ttl"}}
			}
		}
		schema["additionalProperties"] = false
		if fields := needed[name]; fields != nil {
			schema["required"] = fields
		}
		if schema["required"] == nil && schema["anyOf"] == nil {
			delete(body, "required")
		}
	}
	answers := o["responses"].(object)
	good := answers["200"].(object)
	content := good["content"].(object)
	switch {
	case stream:
		good["description"] = "One JSON object a line, as things happen. If the stream breaks off because of an error, the last line is {\"error\": …} with a google.rpc.Status."
		content[linesType] = content[jsonType]
		delete(content, jsonType)
	case name == "OpenSession":
		good["description"] = "The session; for liveness STREAM a stream of events, one JSON object a line, of which the first is opened."
		content[linesType] = object{"schema": ref("locksidecar.v1.Event")}
	default:
		good["description"] = "Done."
	}
	delete(answers, "default")
	wanted := append(slices.Clone(commonErrors), extraErrors[name]...)
	for _, f := range failures {
		if !slices.Contains(wanted, f.reason) {
			continue
		}
		text := f.reason + ": " + f.when + "."
		if there, ok := answers[f.http].(object); ok {
			there["description"] = there["description"].(string) + " " + text
			continue
		}
		answers[f.http] = object{"description": text, "content": object{jsonType: object{"schema": ref(statusName)}}}
	}
}

// statusSchema is google.rpc.Status as the sidecar writes it.
func statusSchema() object {
	var reasons []string
	for _, f := range failures {
		reasons = append(reasons, f.reason)
	}
	return object{
		"type":        "object",
		"description": "An error. Programs should look at details[0].reason, which is stable.",
		"properties": object{
			"code":    object{"type": "integer", "format": "int32", "description": "The gRPC status code."},
			"message": object{"type": "string", "description": "For people."},
			"details": object{
				"type": "array",
				"items": object{
					"type":        "object",
					"description": "A google.rpc.ErrorInfo.",
					"properties": object{
						"@type":    object{"type": "string", "const": "type.googleapis.com/google.rpc.ErrorInfo"},
						"domain":   object{"type": "string", "const": "locksidecar"},
						"reason":   object{"type": "string", "enum": reasons},
						"metadata": object{"type": "object", "additionalProperties": object{"type": "string"}},
					},
				},
			},
		},
	}
}

// addPlain adds the calls that are not in the proto file.
func (d *document) addPlain() {
	text := func(id, summary, yes, no string) map[string]object {
		answers := object{"200": plain(yes)}
		if no != "" {
			answers["503"] = plain(no)
		}
		return map[string]object{"get": {"operationId": id, "tags": []string{"sidecar"}, "summary": summary, "responses": answers}}
	}
	d.Paths["/healthz"] = text("Healthz", "Tells that the process answers.", "It does.", "")
	d.Paths["/readyz"] = text("Readyz", "Tells whether locks can be granted.", "They can.", "They cannot; the text says why.")
	d.Paths["/metrics"] = text("Metrics", "Metrics for Prometheus.", "In Prometheus' text format.", "")
	d.Paths["/openapi.json"] = map[string]object{"get": {
		"operationId": "OpenAPI", "tags": []string{"sidecar"}, "summary": "This document.",
		"responses": object{"200": object{"description": "OpenAPI 3.1.", "content": object{jsonType: object{}}}},
	}}
}

func plain(description string) object {
	return object{"description": description, "content": object{"text/plain": object{"schema": object{"type": "string"}}}}
}

func ref(schema string) object { return object{"$ref": refPrefix + schema} }

func tagOf(path string) string {
	switch {
	case strings.HasPrefix(path, "/v1/sessions"), path == "/v1/hold":
		return "apps"
	case strings.HasPrefix(path, "/v1/locks"), strings.HasPrefix(path, "/v1/watch"), strings.HasPrefix(path, "/v1/leader"), strings.HasPrefix(path, "/v1/outcomes"):
		return "locks"
	default:
		return "sidecar"
	}
}
