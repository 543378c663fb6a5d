package examples

import (
	"encoding/xml"
	"fmt"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// result is one test of a suite in another language.
type result struct {
	name    string
	took    time.Duration
	failure string // empty: passed
	skipped string // why; empty: was not
}

// report makes each result a test of Go's.
func report(t *testing.T, results []result) {
	t.Helper()
	if len(results) == 0 {
		t.Error("it has no tests")
	}
	for _, r := range results {
		// A test that runs one file has its name already.
		t.Run(strings.TrimPrefix(r.name, path.Base(t.Name())+"/"), func(t *testing.T) {
			switch {
			case r.failure != "":
				t.Error(r.failure)
			case r.skipped != "":
				t.Skip(r.skipped)
			default:
				t.Logf("took %s", r.took)
			}
		})
	}
}

var (
	tapTest     = regexp.MustCompile(`^(not )?ok \d+ - (.*?)(?: # (SKIP|TODO) ?(.*))?$`)
	tapDuration = regexp.MustCompile(`^  duration_ms: ([0-9.]+)$`)
)

// readTAP reads the Test Anything Protocol as Node writes it: what belongs to a
// test stands behind its line.
func readTAP(text string) ([]result, error) {
	var all []result
	planned := -1
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if n, ok := strings.CutPrefix(line, "1.."); ok {
			planned, _ = strconv.Atoi(n) // what is no number is no plan
			continue
		}
		if m := tapTest.FindStringSubmatch(line); m != nil {
			r := result{name: strings.ReplaceAll(m[2], `\#`, "#")}
			if m[1] != "" {
				r.failure = "failed\n"
			}
			if m[3] != "" {
				r.skipped = m[3] + " " + m[4]
			}
			all = append(all, r)
			continue
		}
		if len(all) == 0 || strings.HasPrefix(line, "# Subtest: ") {
			continue
		}
		last := &all[len(all)-1]
		if m := tapDuration.FindStringSubmatch(line); m != nil {
			if ms, err := strconv.ParseFloat(m[1], 64); err == nil {
				last.took = time.Duration(ms * float64(time.Millisecond))
			}
		}
		if last.failure != "" {
			last.failure += line + "\n"
		}
	}
	if planned != len(all) {
		return nil, fmt.Errorf("%d tests were planned and %d are there", planned, len(all))
	}
	return all, nil
}

// junit is a report as pytest and Maven's Surefire write it.
type junit struct {
	Suites []junit     `xml:"testsuite"` // of <testsuites>
	Cases  []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string       `xml:"classname,attr"`
	Name    string       `xml:"name,attr"`
	Seconds float64      `xml:"time,attr"`
	Failure *junitReason `xml:"failure"`
	Error   *junitReason `xml:"error"`
	Skipped *junitReason `xml:"skipped"`
	Out     string       `xml:"system-out"`
	Err     string       `xml:"system-err"`
}

type junitReason struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func (r *junitReason) String() string { return strings.TrimSpace(r.Message + "\n" + r.Text) }

// readJUnit reads such files.
func readJUnit(files ...string) ([]result, error) {
	var all []result
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var doc junit
		if err := xml.Unmarshal(text, &doc); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, doc.results()...)
	}
	return all, nil
}

func (j junit) results() []result {
	var all []result
	for _, s := range j.Suites {
		all = append(all, s.results()...)
	}
	for _, c := range j.Cases {
		class := c.Class[strings.LastIndexByte(c.Class, '.')+1:]
		r := result{name: class + "/" + c.Name, took: time.Duration(c.Seconds * float64(time.Second))}
		for _, bad := range []*junitReason{c.Failure, c.Error} {
			if bad != nil {
				r.failure += fmt.Sprintf("%s\n%s%s", bad, c.Out, c.Err)
			}
		}
		if c.Skipped != nil {
			r.skipped = "skipped: " + c.Skipped.String()
		}
		all = append(all, r)
	}
	return all
}

func TestReadTAP(t *testing.T) {
	got, err := readTAP(`TAP version 13
# Subtest: good
ok 1 - good
  ---
  duration_ms: 1.5
  ...
# Subtest: bad \#2
not ok 2 - bad \#2
  ---
  duration_ms: 2
  error: |-
    1 !== 2
  ...
# Subtest: left out
ok 3 - left out # SKIP no store
  ---
  duration_ms: 0
  ...
# told 5 ms before
1..3
# tests 3
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []result{
		{name: "good", took: 1500 * time.Microsecond},
		{name: "bad #2", took: 2 * time.Millisecond, failure: "failed\n  ---\n  duration_ms: 2\n  error: |-\n    1 !== 2\n  ...\n"},
		{name: "left out", skipped: "SKIP no store"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := readTAP("ok 1 - the others never came\n"); err == nil {
		t.Error("no error for a file without its plan")
	}
}

func TestReadJUnit(t *testing.T) {
	file := t.TempDir() + "/TEST-x.xml"
	if err := os.WriteFile(file, []byte(`<?xml version="1.0"?><testsuites><testsuite name="s">
<testcase classname="tests.test_x" name="good" time="0.25"/>
<testcase classname="tests.test_x" name="bad"><failure message="1 != 2">at line 3</failure><system-out>printed</system-out></testcase>
<testcase classname="C" name="left out"><skipped message="no store"/></testcase>
</testsuite></testsuites>`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readJUnit(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []result{
		{name: "test_x/good", took: 250 * time.Millisecond},
		{name: "test_x/bad", failure: "1 != 2\nat line 3\nprinted"},
		{name: "C/left out", skipped: "skipped: no store"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
