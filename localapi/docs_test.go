package localapi

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestLinesOfTheDocs runs the commands of docs/api.md under "Lines", and compares what
// they print with what stands there.
func TestLinesOfTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## Lines\n")
	section, _, ends := strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```sh\n")[1:]
	if !found || !ends || len(blocks) < 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	s := start(t, noNews)
	for i, block := range blocks {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			script, _, _ := strings.Cut(block, "\n```")
			shell := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script+"\nwait\n")
			shell.Dir = t.TempDir()
			shell.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+s.socket)
			shell.WaitDelay = 10 * time.Second
			var stderr bytes.Buffer
			shell.Stderr = &stderr
			out, err := shell.Output()
			if err != nil || stderr.Len() > 0 {
				t.Fatalf("%v\n%s\n%s", err, out, stderr.Bytes())
			}
			var want []string
			for line := range strings.Lines(script) {
				if text, isComment := strings.CutPrefix(line, "# "); isComment {
					want = append(want, strings.TrimSpace(text))
				}
			}
			got := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(got) != len(want) {
				t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), out)
			}
			for n := range want {
				if !asDocumented(want[n]).MatchString(got[n]) {
					t.Errorf("it prints\n%s, documented is\n%s", got[n], want[n])
				}
			}
		})
	}
	eventually(t, "ended", func() bool { return s.manager.Info().Sessions == 0 })
}

// varying is what is different each time.
var varying = regexp.MustCompile(`[0-9]+(\\\.[0-9]+)?s"|[0-9]+ms|[0-9]{8,}|pid [0-9]+|[0-9A-Za-z]*…|node-1`)

func asDocumented(line string) *regexp.Regexp {
	return regexp.MustCompile("^" + varying.ReplaceAllString(regexp.QuoteMeta(line), ".+") + "$")
}
