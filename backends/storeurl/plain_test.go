package storeurl

import (
	"strings"
	"testing"
)

func TestIsPlain(t *testing.T) {
	for _, c := range []struct {
		text, more string
		want       bool
	}{
		{"", "_", false},
		{"a", "", true},
		{"AZaz09_$-", "_$-", true},
		{"a-b", "_$", false},
		{"a`b", "_$", false},
		{"a b", "_$", false},
		{" a", "_$", false},
		{"a\n", "_$", false},
		{"a\x00b", "_$", false},
		{"a'; DROP TABLE b", "_$", false},
		{"ä", "_$", false},
		{"a\xff", "_$", false},
		{"Europe/Berlin", "_+:/-", true},
		{"+00:00", "_+:/-", true},
		{strings.Repeat("a", 64), "", true},
		{strings.Repeat("a", 65), "", false},
	} {
		if got := IsPlain(c.text, c.more, 64); got != c.want {
			t.Errorf("IsPlain(%q, %q) is %t", c.text, c.more, got)
		}
	}
}
