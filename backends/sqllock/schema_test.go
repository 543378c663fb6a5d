package sqllock

import "testing"

// What is not a table's name in braces stays as it is: labels, and what a later step puts in.
func TestNamed(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT 1": "SELECT 1",
		"{lease}":  "<lease>",
		"SELECT {at}, x FROM {lock} l JOIN {meta}": "SELECT {at}, x FROM <lock> l JOIN <meta>",
		"{{hold}}": "{<hold>}",
		"{ {hold}": "{ <hold>",
		"{hold":    "{hold",
		"{}hold}":  "{}hold}",
	} {
		if got := Named(text, func(name string) string { return "<" + name + ">" }); got != want {
			t.Errorf("Named(%q) is %q, not %q", text, got, want)
		}
	}
}
