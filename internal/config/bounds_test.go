package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestDistance: letters to add, to drop and to change.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"abc", "abc", 0},
		{"abc", "abd", 1},
		{"abc", "xbc", 1},
		{"abc", "bc", 1},
		{"bc", "abc", 1},
		{"abc", "ab", 1},
		{"ab", "abc", 1},
		{"xabc", "abc", 1},
		{"ab", "ba", 2},
		{"abcdef", "defabc", 6},
		{"abcd", "cd", 2},
		{"cd", "abcd", 2},
		{"kitten", "sitting", 3},
		{"saturday", "sunday", 3},
		{"aaaa", "a", 3},
		{"a", "aaaa", 3},
		{"abab", "baba", 2},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q are %d letters, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestHowNear: two letters may be wrong, or a third of a long name, and of two that are
// as near the first one is meant.
func TestHowNear(t *testing.T) {
	for _, c := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"abcd", []string{"abxy"}, "abxy"},
		{"abcd", []string{"axyz"}, ""},
		{"abcdefgh", []string{"abcdefxy"}, "abcdefxy"},
		{"abcdefgh", []string{"abcdexyz"}, ""},
		{"abcdefghi", []string{"abcdefxyz"}, "abcdefxyz"},
		{"abcdefghi", []string{"abcdewxyz"}, ""},
		{"abcdefghijk", []string{"abcdefghxyz"}, "abcdefghxyz"},
		{"abcdefghijk", []string{"abcdefgwxyz"}, ""},
		{"abcdefghijkl", []string{"abcdefghwxyz"}, "abcdefghwxyz"},
		{"abcdefghijkl", []string{"abcdefgvwxyz"}, ""},
		{"abcd", []string{"abcx", "abcy"}, "abcx"},
		{"abcd", []string{"abxy", "abcy"}, "abcy"},
		{"LOCK_TTL", []string{"lock-ttl"}, "lock-ttl"},
		{"abcd", nil, ""},
	} {
		if got := Nearest(c.name, c.candidates); got != c.want {
			t.Errorf("%q means %q of %q, want %q", c.name, got, c.candidates, c.want)
		}
	}
}

// TestFileSize: a file of a mebibyte is read, and one byte more is refused.
func TestFileSize(t *testing.T) {
	for size, fails := range map[int]bool{1 << 20: false, 1<<20 + 1: true, 1 << 21: true, 3 << 20: true} {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := read(path)
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes")):
			t.Errorf("%d bytes: %v", size, err)
		case !fails && (err != nil || len(got) != size):
			t.Errorf("%d bytes: %d are read, %v", size, len(got), err)
		}
	}
}

// TestNeedsNamesTheFirst of the flags that would give a meaning to one.
func TestNeedsNamesTheFirst(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, name := range []string{"note", "once", "keep"} {
		flags.String(name, "", "")
	}
	Needs(flags, "note", "once", "keep")
	if err := flags.Parse([]string{"--note=x"}); err != nil {
		t.Fatal(err)
	}
	err := Apply(flags, Source{Env: func(string) (string, bool) { return "", false }})
	if want := "--note means nothing without --once"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestFlagsMustBeThere: to say something of a flag that is not defined is a mistake in
// the program, and none that a user can make.
func TestFlagsMustBeThere(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("a", "", "")
	for name, say := range map[string]func(){
		"Rivals":          func() { Rivals(flags, "a", "b") },
		"Hides":           func() { Hides(flags, "a", "b") },
		"Needs":           func() { Needs(flags, "b", "a") },
		"NotInFile":       func() { NotInFile(flags, "b") },
		"OnlyCommandLine": func() { OnlyCommandLine(flags, "b") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			say()
		})
	}
}
