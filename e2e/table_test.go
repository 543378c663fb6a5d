package e2e

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// lifeTable is what was measured, for docs/kubernetes.md.
type lifeTable struct{ rows []string }

var table lifeTable

// add notes what happens, when the app is told, and when its lock is another's
// (median of what was measured; none: not at all).
func (l *lifeTable) add(what, told string, free []time.Duration, note string) {
	when := "–"
	if len(free) > 0 {
		when = short(median(free))
	}
	l.rows = append(l.rows, fmt.Sprintf("| %s | %s | %s | %s |", what, told, when, note))
}

func (l *lifeTable) markdown() string {
	return "| what happens | the app is told | its lock is the next one's after | beside that |\n|---|---|---|---|\n" +
		strings.Join(l.rows, "\n") + "\n"
}

// The table in the document stands between these lines.
const (
	tableBegin = "<!-- make e2e: begin -->\n"
	tableEnd   = "<!-- make e2e: end -->"
)

func (l *lifeTable) replaceIn(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", file, strings.TrimSpace(tableBegin), tableEnd)
	}
	return os.WriteFile(file, []byte(before+tableBegin+l.markdown()+tableEnd+after), 0o644)
}

// short is a duration as people say it.
func short(d time.Duration) string {
	if d < time.Millisecond {
		return "1 ms"
	}
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
