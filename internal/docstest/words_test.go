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

// dated are words that nobody says any more, and phrases of which one has to guess what they mean.
var dated = regexp.MustCompile(`(?i)\b(lately|anew|whence|thereby|hitherto|dear|dearer|dearest)\b|\bstayed out\b|\bw(as|ere) not got\b|\bis the asking\b`)

// What people read is in the English of today: pages, help, messages and comments.
func TestPlainWords(t *testing.T) {
	kinds := strings.Fields(".go .md .lua .proto .py .java .js .ts .rb .php .rs .sh .pml .yaml .tpl .json .html .toml")
	read := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata", "node_modules", "target", ".venv", "schemas"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !slices.Contains(kinds, filepath.Ext(path)) || d.Name() == "words_test.go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for i, line := range strings.Split(string(text), "\n") {
			if word := dated.FindString(line); word != "" {
				t.Errorf("%s:%d says %q", strings.TrimPrefix(path, root+"/"), i+1, word)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 500 {
		t.Errorf("only %d files were read", read)
	}
}
