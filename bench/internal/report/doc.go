package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// The table in a document stands between these lines.
const (
	docBegin = "<!-- bench: begin -->\n"
	docEnd   = "<!-- bench: end -->\n"
)

var errNoMarks = errors.New("the lines that mark the table are not there")

// WriteDoc puts the text of the report into a Markdown file, in place of the
// one that is there.
func (r *Report) WriteDoc(path string) error {
	old, err := os.ReadFile(path) //nolint:gosec // the file that the user named
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	doc, err := replaceTable(old, r.Text())
	if err != nil {
		return fmt.Errorf("find the table in %s: %w", path, err)
	}
	if err := os.WriteFile(path, doc, 0o644); err != nil { //nolint:gosec // a document is for everybody to read
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

func replaceTable(doc []byte, text string) ([]byte, error) {
	before, rest, ok := bytes.Cut(doc, []byte(docBegin))
	if !ok {
		return nil, errNoMarks
	}
	_, after, ok := bytes.Cut(rest, []byte(docEnd))
	if !ok {
		return nil, errNoMarks
	}
	return fmt.Appendf(nil, "%s%s\n```text\n%s```\n\n%s%s", before, docBegin, text, docEnd, after), nil
}
