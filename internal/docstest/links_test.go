package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link    = regexp.MustCompile(`\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#*$`)
	code    = regexp.MustCompile("`[^`\n]*`")
)

// anchor is what GitHub makes of a heading.
func anchor(title string) string {
	title = link.ReplaceAllStringFunc(title, func(l string) string { return l[1:strings.Index(l, "]")] })
	var s strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			s.WriteRune(r)
		case r == ' ':
			s.WriteByte('-')
		}
	}
	return s.String()
}

// anchors are those of a page; a second heading of a name has a number.
func anchors(text string) map[string]bool {
	found, seen := make(map[string]bool), make(map[string]int)
	for _, h := range heading.FindAllStringSubmatch(prose(text), -1) {
		a := anchor(h[1])
		if n := seen[a]; n > 0 {
			found[fmt.Sprintf("%s-%d", a, n)] = true
		} else {
			found[a] = true
		}
		seen[a]++
	}
	return found
}

// Each link to a file of the repository leads to one, and each anchor to a heading.
func TestLinks(t *testing.T) {
	all := pages(t)
	for _, page := range sorted(all) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(prose(all[page]), "`"), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, at, _ := strings.Cut(target, "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), path)
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s: the link %s leads nowhere", page, target)
					continue
				}
			}
			if at == "" {
				continue
			}
			if text, ok := all[file]; ok && !anchors(text)[at] {
				t.Errorf("%s: %s has no heading for the link %s", page, file, target)
			}
		}
	}
}

// A page that nothing links to is not found by anybody.
func TestEachPageIsLinked(t *testing.T) {
	all := pages(t)
	linked := map[string]bool{"README.md": true}
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			path, _, _ := strings.Cut(m[1], "#")
			file := filepath.Join(filepath.Dir(page), path)
			linked[file], linked[filepath.Join(file, "README.md")] = true, true
		}
	}
	for _, page := range sorted(all) {
		if !linked[page] && strings.HasPrefix(page, "docs/") {
			t.Errorf("no page links to %s", page)
		}
	}
}

// Links from the code and the chart to pages, such as an alarm's runbook, lead there.
func TestLinksFromCode(t *testing.T) {
	const here = "https://github.com/locksidecar/locksidecar/blob/main/"
	all := pages(t)
	text, err := os.ReadFile(filepath.Join(root, "deploy/helm/locksidecar/files/alarms.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(regexp.QuoteMeta(here)+`([\w./-]+)#([\w-]+)`).FindAllStringSubmatch(string(text), -1)
	if len(links) == 0 {
		t.Fatal("no alarm has a runbook")
	}
	for _, m := range links {
		if !anchors(all[m[1]])[m[2]] {
			t.Errorf("the chart's alarms link to %s#%s, which is not there", m[1], m[2])
		}
	}
}

// Where a decision is made, and what follows a death, stands in architecture.md: what is
// named beside a file is there.
func TestWhereItIsDecided(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile(`\[[^\]]*\]\(\.\./([^)#]*)\)`)
	name := regexp.MustCompile("`([A-Za-z]+)`")
	for heading, least := range map[string]int{"When something dies": 5, "Where it is decided": 10} {
		_, table, ok := strings.Cut(string(text), "## "+heading+"\n")
		if !ok {
			t.Fatalf("no heading %q", heading)
		}
		table, _, _ = strings.Cut(table, "\n## ")
		found := 0
		for row := range strings.Lines(table) {
			var sources strings.Builder
			for _, m := range file.FindAllStringSubmatch(row, -1) {
				source, err := os.ReadFile(filepath.Join(root, m[1]))
				if err != nil {
					t.Fatal(err)
				}
				sources.Write(source)
			}
			for _, m := range name.FindAllStringSubmatch(row, -1) {
				found++
				declared := regexp.MustCompile(`(?m)^(?:local )?func(?:tion)? (?:\([^)]*\) )?` + m[1] + `\(`)
				if !declared.MatchString(sources.String()) {
					t.Errorf("no function %s in the files of\n%s", m[1], row)
				}
			}
		}
		if found < least {
			t.Errorf("%q: %d names", heading, found)
		}
	}
}
