package docstest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// A word in backticks, or the one that means backends/backendtest.
	shownWord = regexp.MustCompile("`([^`]+)`|\\b(suite)\\b")
	// Functions of tests, subtests, and the rows of the suite.
	testName = regexp.MustCompile(`(?m)^func (?:Test|Fuzz)(\w+)\(|\.Run\("(\w+)"|\{name: "(\w+)"`)
	literal  = regexp.MustCompile(`"(\w+)"`)
	asserted = regexp.MustCompile(`(?:must\(|ltl )(\w+)`)
	aside    = regexp.MustCompile(`\([^()]*\)`)
)

// testsOf are the tests of one package, and the words that its tests have in quotes, which
// may be names of subtests.
type testsOf struct{ names, quoted []string }

// shownBy has the tests of each package, by each end of its path that is a whole path.
func shownBy(t *testing.T) map[string]*testsOf {
	t.Helper()
	all := make(map[string]*testsOf)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		suite := filepath.Base(filepath.Dir(path)) == "backendtest"
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "testdata", "node_modules", "target", ".venv", ".ci"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || !suite && !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for end := dir; ; {
			s := all[end]
			if s == nil {
				s = &testsOf{}
				all[end] = s
			}
			for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
				s.names = append(s.names, m[1]+m[2]+m[3])
			}
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				s.quoted = append(s.quoted, m[1])
			}
			_, rest, more := strings.Cut(end, "/")
			if !more {
				return err
			}
			end = rest
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	all["suite"], all["cmd"] = all["backendtest"], all["cmd/locksidecar"]
	for _, name := range all["suite"].quoted { // those that run without pushes, too
		all["suite"].names = append(all["suite"].names, name+"WithoutPushes")
	}
	return all
}

// has says whether there is a test of that name, which may be one of several: "Retry…",
// or a subtest: "ShedLock/…/MinHold".
func (s *testsOf) has(name string) bool {
	if s == nil {
		return false
	}
	for i, part := range strings.Split(strings.TrimPrefix(name, "Test"), "/") {
		re := regexp.MustCompile("^" + strings.ReplaceAll(part, "…", `\w*`) + "$")
		if !slices.ContainsFunc(s.names, re.MatchString) && (i == 0 || !slices.ContainsFunc(s.quoted, re.MatchString)) {
			return false
		}
	}
	return true
}

// namedTests reads a cell, "suite: `A`, `B`; `session`: `C`", and says how many tests it names
// that exist. Of the others it says what it names.
func namedTests(all map[string]*testsOf, cell string) (tests int, missing []string) {
	var where []*testsOf
	named := true // the last word was a test, and no package
	for _, m := range shownWord.FindAllStringSubmatch(aside.ReplaceAllString(cell, ""), -1) {
		word := m[1] + m[2]
		if first := word[0]; first >= 'a' && first <= 'z' {
			if named {
				where, named = nil, false
			}
			if all[word] == nil {
				missing = append(missing, "package "+word)
			}
			where = append(where, all[word])
			continue
		}
		named = true
		if slices.ContainsFunc(where, func(s *testsOf) bool { return s.has(word) }) {
			tests++
		} else {
			missing = append(missing, word)
		}
	}
	return tests, missing
}

// Each test that guarantees.md names exists, in the package that it names, and so does each
// assertion of the models. Each law and each promise has a test.
func TestGuaranteesAreShown(t *testing.T) {
	const page = "docs/guarantees.md"
	all := shownBy(t)
	models := make(map[string]string)
	for name := range strings.FieldsSeq("failover force kept lease queue retry told") {
		text, err := os.ReadFile(filepath.Join(root, "model", name+".pml"))
		if err != nil {
			t.Fatal(err)
		}
		models[name] = string(text)
	}
	for title, want := range map[string]int{"Promises of the sidecar, on every store": 15, "Laws": 11} {
		column := -1
		numbered := 0
		for line := range strings.Lines(section(t, page, title)) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
			if i := slices.Index(cells, "shown by"); i >= 0 {
				column = i
				continue
			}
			if rest, ok := strings.CutPrefix(line, "Tests: "); ok {
				_, missing := namedTests(all, rest)
				complain(t, page, line, missing)
			}
			if !strings.HasPrefix(line, "| ") || column < 0 {
				if !strings.HasPrefix(line, "|--") {
					column = -1 // the table is over
				}
				continue
			}
			tests, missing := namedTests(all, cells[column])
			complain(t, page, cells[0], missing)
			if tests == 0 {
				t.Errorf("%s: %q has no test that is named", page, cells[0])
			}
			if cells[0] == fmt.Sprint(numbered+1) {
				numbered++
				checkModels(t, models, page, cells[0], cells[column+1])
			}
		}
		if numbered != want {
			t.Errorf("%s: of %q %d are numbered, want %d", page, title, numbered, want)
		}
	}
	for _, cell := range rows(section(t, page, "Each store")) {
		if !strings.Contains(cell, "`") {
			continue
		}
		_, missing := namedTests(all, "suite: "+cell)
		complain(t, page, cell, missing)
	}
}

func complain(t *testing.T, page, row string, missing []string) {
	t.Helper()
	if len(missing) > 0 {
		t.Errorf("%s, %.30q: there is no %s", page, row, strings.Join(missing, ", "))
	}
}

// checkModels reads "queue, failover: `promise_1_exclusion`; kept: `…`".
func checkModels(t *testing.T, models map[string]string, page, row, cell string) {
	t.Helper()
	for group := range strings.SplitSeq(cell, ";") {
		names, words, ok := strings.Cut(group, ":")
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(names, ",") {
			name = strings.TrimSpace(name)
			var there []string
			for _, m := range asserted.FindAllStringSubmatch(models[name], -1) {
				there = append(there, m[1])
			}
			for _, m := range shownWord.FindAllStringSubmatch(words, -1) {
				if !slices.Contains(there, m[1]) {
					t.Errorf("%s, row %s: model/%s.pml asserts no %s", page, row, name, m[1])
				}
			}
		}
	}
}
