package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// luaOperators have another one each that is wrong.
var luaOperators = []struct{ pattern, old, new string }{
	{`[^=~<>](==)[^=]`, "==", "~="},
	{`(~=)`, "~=", "=="},
	{`[^-](<=)`, "<=", "<"},
	{`(>=)`, ">=", ">"},
	{`(<)[^=]`, "<", "<="},
	{`(>)[^=]`, ">", ">="},
	{`\b(and)\b`, "and", "or"},
	{`\b(or)\b`, "or", "and"},
	{`\b(not )`, "not ", ""},
	{`( \+ )`, " + ", " - "},
	{`( - )`, " - ", " + "},
	{`\b(true)\b`, "true", "false"},
	{`\b(false)\b`, "false", "true"},
}

var (
	luaPatterns  []*regexp.Regexp
	luaNumber    = regexp.MustCompile(`[^\w\[%.'](\d+)[^\w\].']`)
	luaStatement = regexp.MustCompile(`^\s*(redis\.call\(.*\)|[a-z_]+\(.*\)|[a-z_]+ = [^{]*[^{,(])$`)
	luaReturn    = regexp.MustCompile(`^\s*(?:.* then )?(return .+?)(?: end)?$`)
)

func init() {
	for _, o := range luaOperators {
		luaPatterns = append(luaPatterns, regexp.MustCompile(o.pattern))
	}
}

// inLua lists the changes of a Lua script, line by line: our scripts are plain.
func inLua(src []byte) []Mutant {
	var found []Mutant
	offset := 0
	for i, raw := range bytes.Split(src, []byte("\n")) {
		line := strip(string(raw))
		note := func(from, to int, text, what string, args ...any) {
			found = append(found, Mutant{Line: i + 1, What: fmt.Sprintf(what, args...), start: offset + from, end: offset + to, text: text})
		}
		for j, o := range luaOperators {
			for _, at := range luaPatterns[j].FindAllStringSubmatchIndex(line, -1) {
				if !quoted(line, at[2]) {
					note(at[2], at[3], o.new, "%s becomes %s", strings.TrimSpace(o.old), strings.TrimSpace(o.new))
				}
			}
		}
		for _, at := range luaNumber.FindAllStringSubmatchIndex(line, -1) {
			if !quoted(line, at[2]) {
				note(at[2], at[3], line[at[2]:at[3]]+"+1", "%s becomes one more", line[at[2]:at[3]])
			}
		}
		if at := luaStatement.FindStringSubmatchIndex(line); at != nil {
			note(at[2], at[3], "", "the statement is left out")
		}
		if at := luaReturn.FindStringSubmatchIndex(line); at != nil {
			note(at[2], at[3], "return nil", "nil is returned")
		}
		offset += len(raw) + 1
	}
	return found
}

// strip takes a comment off a line.
func strip(line string) string {
	for i := 0; i+1 < len(line); i++ {
		if line[i:i+2] == "--" && !quoted(line, i) {
			return strings.TrimRight(line[:i], " ")
		}
	}
	return line
}

// quoted tells whether that place of a line stands in a string.
func quoted(line string, at int) bool { return strings.Count(line[:at], "'")%2 == 1 }
