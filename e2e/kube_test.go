package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// object is a Kubernetes object, or a part of one.
type object = map[string]any

// command runs a program with input, and returns what it wrote.
func command(ctx context.Context, input []byte, name string, args ...string) (string, error) {
	out, _, err := commandBoth(ctx, input, name, args...)
	return out, err
}

// commandBoth also returns what it wrote to stderr.
func commandBoth(ctx context.Context, input []byte, name string, args ...string) (stdout, stderr string, _ error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if ctx.Value(cleaning{}) == nil {
		defer context.AfterFunc(interrupted, cancel)()
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), errs.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), errs.String(), nil
}

func kubectl(ctx context.Context, args ...string) (string, error) {
	return command(ctx, nil, "kubectl", args...)
}

// create makes an object.
func create(ctx context.Context, o object) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = command(ctx, text, "kubectl", "create", "-f", "-")
	return err
}

// warnings are what the policies would tell whoever makes the object.
func warnings(ctx context.Context, o object) (string, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	_, errs, err := commandBoth(ctx, text, "kubectl", "create", "--dry-run=server", "-o", "name", "-f", "-")
	var ours strings.Builder
	for line := range strings.Lines(errs) {
		if strings.HasPrefix(line, "Warning: Validation failed for ValidatingAdmissionPolicy") { // others warn too
			ours.WriteString(line)
		}
	}
	return ours.String(), err
}

func namespace(ctx context.Context, name string, labels object) error {
	return create(ctx, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name, "labels": labels}})
}

// helm runs helm on our release.
func helm(ctx context.Context, args ...string) (string, error) {
	return command(ctx, nil, "helm", append([]string{"--namespace", systemNS}, args...)...)
}

// get reads an object into v.
func get(t *testing.T, v any, args ...string) {
	t.Helper()
	text, err := kubectl(t.Context(), append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatal(err)
	}
}

// must runs kubectl.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}
