package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
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
	luaNumber    = regexp.MustCompile(`[^\w\[%.'](\d+)(?:[^\w\].']|$)`)
	luaCondition = regexp.MustCompile(`^\s*(?:else)?if (.+?) then\b`)
	luaPlain     = regexp.MustCompile(`^not [^ ]+$`) // turned round where "not" is taken away
	luaStatement = regexp.MustCompile(`^\s*(?:.* (?:then|do) )?(redis\.call\(.*?\)|[a-z_]+\(.*?\)|[a-z_]+ = [^{]*?[^{,(])(?: end)?$`)
	luaLeave     = regexp.MustCompile(`^\s*(?:.* then )?(return|break)(?: end)?$`)
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
				if quoted(line, at[2]) {
					continue
				}
				what := strings.TrimSpace(o.old) + " becomes " + strings.TrimSpace(o.new)
				if o.new == "" {
					what = strings.TrimSpace(o.old) + " is left out"
				}
				note(at[2], at[3], o.new, "%s", what)
			}
		}
		for _, at := range luaNumber.FindAllStringSubmatchIndex(line, -1) {
			if n, err := strconv.Atoi(line[at[2]:at[3]]); err == nil && !quoted(line, at[2]) {
				note(at[2], at[3], strconv.Itoa(n+1), "%d becomes %d", n, n+1)
			}
		}
		if at := luaCondition.FindStringSubmatchIndex(line); at != nil && !luaPlain.MatchString(line[at[2]:at[3]]) {
			note(at[2], at[3], "not ("+line[at[2]:at[3]]+")", "the condition is turned round")
		}
		switch at := luaStatement.FindStringSubmatchIndex(line); {
		case at != nil:
			note(at[2], at[3], "", "the statement is left out")
		case strings.HasPrefix(strings.TrimSpace(line), "redis.call("): // it goes on in the next line
			from := strings.Index(line, "redis.call(")
			if to := closed(string(src[offset+from:])); to > 0 {
				note(from, from+to, "", "the statement is left out")
			}
		}
		if at := luaLeave.FindStringSubmatchIndex(line); at != nil {
			note(at[2], at[3], "", "the statement is left out")
		} else if at := luaReturn.FindStringSubmatchIndex(line); at != nil && falsy(line[at[2]:at[3]]) == "" {
			note(at[2], at[3], "return nil", "nil is returned")
		}
		offset += len(raw) + 1
	}
	return found
}

// falsy is what a statement returns that is as good as nil.
func falsy(statement string) string {
	switch what := strings.TrimPrefix(statement, "return "); what {
	case "nil", "false":
		return what
	}
	return ""
}

// closed is where the first call of a text ends; 0 where that is not the end of a line.
func closed(text string) int {
	depth := 0
	for i, c := range text {
		if quoted(text, i) {
			continue
		}
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 && i+1 < len(text) && text[i+1] == '\n' {
				return i + 1
			} else if depth == 0 {
				return 0
			}
		}
	}
	return 0
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
