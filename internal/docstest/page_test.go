package docstest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

// block is one fenced block of a page.
type block struct {
	page, language, text string
	line                 int
	mark                 string // what a docs-test comment before it says
}

// how splits the mark of a block.
func (b block) how(t *testing.T) (verb, reason string) {
	t.Helper()
	verb, reason, _ = strings.Cut(b.mark, ":")
	reason = strings.TrimSpace(reason)
	switch {
	case verb == "" || verb == "continued":
	case verb != "not run" && verb != "compiled":
		t.Errorf("%s:%d: docs-test does not know %q", b.page, b.line, b.mark)
	case reason == "":
		t.Errorf("%s:%d: docs-test: %s: for which reason?", b.page, b.line, verb)
	}
	return verb, reason
}

// pages are all Markdown files that people read, by their paths in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "testdata", "node_modules", "target", ".venv", ".ci"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if all["README.md"] == "" || all["docs/api.md"] == "" {
		t.Fatal("README.md or docs/api.md is not there")
	}
	return all
}

var (
	fence   = regexp.MustCompile("^( *)```([a-z]*)$")
	comment = regexp.MustCompile(`^ *<!-- docs-test: (.*) -->$`)
)

// blocks are the fenced blocks of a page, in their order.
func blocks(t *testing.T, page, text string) []block {
	t.Helper()
	var found []block
	var b *block
	var indent, mark string
	var body []string
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case b != nil && m != nil && m[2] == "":
			b.text = strings.Join(body, "\n") + "\n"
			found = append(found, *b)
			b, body, mark = nil, nil, ""
		case b != nil:
			body = append(body, strings.TrimPrefix(line, indent))
		case m != nil:
			indent = m[1]
			b = &block{page: page, language: m[2], line: i + 1, mark: mark}
		case strings.TrimSpace(line) != "":
			mark = ""
			if c := comment.FindStringSubmatch(line); c != nil {
				mark = c[1]
			}
		}
	}
	if b != nil {
		t.Errorf("%s:%d: the block does not end", page, b.line)
	}
	return found
}

// sorted are the keys of a map in their order.
func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// prose is a page without its blocks.
func prose(text string) string {
	var out []string
	inside := false
	for line := range strings.Lines(text) {
		if fence.MatchString(strings.TrimSuffix(line, "\n")) {
			inside = !inside
			out = append(out, "\n")
			continue
		}
		if inside {
			line = "\n"
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}
