package main

import (
	"os"
	"strings"
	"testing"
)

const chart = "../../../deploy/helm/locksidecar"

// TestREADME: the table is that of the values.
func TestREADME(t *testing.T) {
	want, err := updated(chart)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(chart + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("the table in deploy/helm/locksidecar/README.md is not that of values.yaml: run make generate")
	}
}

func TestTable(t *testing.T) {
	got, err := table([]byte("# -- One.\na: {b: 1}\nc:\n  # -- Two,\n  # in two lines.\n  d: \"\"\n"))
	want := "| `a` | `{\"b\":1}` | One. |\n| `c.d` | `\"\"` | Two, in two lines. |\n"
	if err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("got %q, %v; want %q at its end", got, err, want)
	}
	if _, err := table([]byte("# no dashes\na: 1\n")); err == nil || !strings.Contains(err.Error(), "line 2: a has no comment") {
		t.Errorf("error %v for a value without a comment", err)
	}
}
