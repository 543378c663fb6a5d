package sqllock

import (
	_ "embed" // of the schema
	"regexp"
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
	var pairs []string
	for _, t := range tableNames {
		pairs = append(pairs, "{"+t+"}", table(t))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
