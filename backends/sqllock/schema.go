package sqllock

import (
	_ "embed" // of the schema
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed schema.sql
var schema string

var (
	tableText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)CREATE TABLE IF NOT EXISTS \{(\w+)\}.*?;\n`) })
	keyLine   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`,\n  KEY (\w+) \((.*)\)`) })
)

// Schema is the text that makes the tables, in the words of a dialect. It does nothing
// where they are there.
func Schema(w Words) string {
	text := schema
	if w.Index != nil {
		text = tableText().ReplaceAllStringFunc(text, func(table string) string {
			name := tableText().FindStringSubmatch(table)[1]
			indexes := ""
			for _, key := range keyLine().FindAllStringSubmatch(table, -1) {
				indexes += w.Index(name, key[1], key[2]) + ";\n"
			}
			return keyLine().ReplaceAllString(table, "") + indexes
		})
	}
	text += w.InsertNew("{meta} (name, value) VALUES ('schema', "+strconv.FormatInt(w.Version, 10)+"), ('floor', 0), ('era', 0), ('keeper', 0), ('server', 0)") + ";\n"
	text = strings.ReplaceAll(text, "{version}", strconv.FormatInt(w.Version, 10))
	return Named(strings.NewReplacer(w.Schema...).Replace(text), w.Table)
}

// tableNames are all tables, as they stand in {braces}.
var tableNames = []string{"lease", "lock", "hold", "queue", "note", "least", "handle", "record", "log", "meta"}

// Named puts the names of tables, as table gives them, into a text that has them in {braces}.
func Named(text string, table func(name string) string) string {
	return braced(text, func(word string) (string, bool) {
		if !slices.Contains(tableNames, word) {
			return "", false
		}
		return table(word), true
	})
}

// braced puts in what stands for a word in {braces}; where nothing does, the text stays as it is. A strings.Replacer does the
// same, and to make one for each of a hundred statements takes ten times as long.
func braced(text string, put func(word string) (string, bool)) string {
	var out strings.Builder
	out.Grow(2 * len(text))
	for {
		before, after, found := strings.Cut(text, "{")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		text = after
		if word, rest, closed := strings.Cut(after, "}"); closed {
			if s, known := put(word); known {
				out.WriteString(s)
				text = rest
				continue
			}
		}
		out.WriteByte('{')
	}
}
