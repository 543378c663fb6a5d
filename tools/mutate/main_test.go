package main

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

const goSource = `package p

func f(a, b int, on bool) (int, error) {
	if a < b && on {
		g(a)
	}
	switch {
	case a == 1:
		return a + 2, nil
	}
	defer g(b)
	a = 3
	return b, nil
}
`

// apply gives the source with a change.
func apply(src string, m Mutant) string { return src[:m.start] + m.text + src[m.end:] }

func TestInGo(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", goSource, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	all := inFile(fset, file, []byte(goSource), nil, nil)
	var got []string
	for _, m := range all {
		changed := apply(goSource, m)
		if _, err := parser.ParseFile(token.NewFileSet(), "p.go", changed, 0); err != nil || changed == goSource {
			t.Errorf("%d: %s: %v", m.Line, m.What, err)
		}
		got = append(got, m.What)
	}
	for _, want := range []string{
		"< becomes <=", "&& becomes ||", "the condition is turned round", "the statement is left out", "== becomes !=", "1 becomes 2",
		"+ becomes -", "zero is returned in place of a + 2", "zero is returned in place of b",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not among %q", want, got)
		}
	}
	if n := strings.Count(strings.Join(got, "\n"), "left out"); n != 3 {
		t.Errorf("%d statements are left out, want 3", n)
	}
}

const luaSource = `-- a < b
local x = tonumber(redis.call('GET', KEYS[1])) -- + 1
if not x or x <= now then return {'LOST and'} end
redis.call('SET', KEYS[1], x + 1)
if not x then return end
if x then x = x * 9 end
redis.call('HSET', KEYS[1], (x),
  'a)' .. x)
return nil
`

func TestInLua(t *testing.T) {
	var got []string
	for _, m := range inLua([]byte(luaSource)) {
		line := strings.Split(apply(luaSource, m), "\n")[m.Line-1]
		got = append(got, m.What+": "+line)
	}
	want := []string{
		"<= becomes <: if not x or x < now then return {'LOST and'} end",
		"or becomes and: if not x and x <= now then return {'LOST and'} end",
		"not is left out: if x or x <= now then return {'LOST and'} end",
		"the condition is turned round: if not (not x or x <= now) then return {'LOST and'} end",
		"nil is returned: if not x or x <= now then return nil end",
		"+ becomes -: redis.call('SET', KEYS[1], x - 1)",
		"1 becomes 2: redis.call('SET', KEYS[1], x + 2)",
		"the statement is left out: ",
		"not is left out: if x then return end",
		"the statement is left out: if not x then  end",
		"the condition is turned round: if not (x) then x = x * 9 end",
		"9 becomes 10: if x then x = x * 10 end",
		"the statement is left out: if x then  end",
		"the statement is left out: ",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
