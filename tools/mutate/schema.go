package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A schema is the source of a package with all its changes in it. Which one is in force
// is said when its tests start, so they are built once and not once a change.

// wrap is how a change stands in the schema: the code from start to end, as the schema
// has it so far, becomes the code that make gives.
type wrap struct {
	start, end int
	make       func(id int, code string) string
	consts     int // where the constants are declared that become variables for it; 0: none
}

// schemaFile is added to the package. A test process gets the number of its change, or
// a file for the numbers of all changes that it comes across.
const schemaFile = `package %s

import (
	mutateOS__ "os"
	mutateStrconv__ "strconv"
	mutateAtomic__ "sync/atomic"
)

var (
	mutateID__, _  = mutateStrconv__.Atoi(mutateOS__.Getenv("MUTATE_ID"))
	mutateLog__, _ = mutateOS__.OpenFile(mutateOS__.Getenv("MUTATE_REACHED"), mutateOS__.O_APPEND|mutateOS__.O_WRONLY, 0)
	mutateSeen__   [%d]mutateAtomic__.Bool
)

func mutate__(id int) bool {
	if mutateLog__ != nil && !mutateSeen__[id].Swap(true) {
		_, _ = mutateLog__.WriteString(mutateStrconv__.Itoa(id) + "\n")
	}
	return id == mutateID__
}

func mutateEmbed__(path string) string {
	if path == mutateOS__.Getenv("MUTATE_EMBED") {
		path = mutateOS__.Getenv("MUTATE_WITH")
	}
	b, err := mutateOS__.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return string(b)
}
`

// schema puts the changes of a file into its source. The lines keep their numbers.
func schema(src []byte, all []*Mutant) string {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *Mutant) int {
		return cmp.Or(cmp.Compare(a.wrap.start, b.wrap.start), cmp.Compare(b.wrap.end, a.wrap.end))
	})
	for _, m := range all {
		if at := m.wrap.consts; at != 0 {
			src = slices.Concat(src[:at], []byte("var  "), src[at+len("const"):])
		}
	}
	var compose func(from, to int, in []*Mutant) string
	compose = func(from, to int, in []*Mutant) string {
		var b strings.Builder
		for len(in) > 0 {
			m := in[0]
			n := 1
			for n < len(in) && in[n].wrap.start < m.wrap.end {
				n++
			}
			b.Write(src[from:m.wrap.start])
			b.WriteString(m.wrap.make(m.id, compose(m.wrap.start, m.wrap.end, in[1:n])))
			from, in = m.wrap.end, in[n:]
		}
		b.Write(src[from:to])
		return b.String()
	}
	return compose(0, len(src), sorted)
}

var embedded = regexp.MustCompile(`(?m)^(\s*)//go:embed (\S+\.lua)\n(\s*)(var )?(\w+) string$`)

// unembed reads scripts when a test starts, in place of when it is built.
func unembed(dir, source string) string {
	return embedded.ReplaceAllStringFunc(source, func(s string) string {
		m := embedded.FindStringSubmatch(s)
		return fmt.Sprintf("%s//\n%s%s%s string = mutateEmbed__(%q)", m[1], m[3], m[4], m[5], filepath.Join(dir, m[2]))
	})
}

// named says how the type of an expression is written in this file; "" if it cannot be.
func (g *golang) named(e ast.Expr) string {
	if g.info == nil {
		return ""
	}
	t, ok := g.info.Types[e]
	if !ok || t.Type == nil {
		return ""
	}
	nameless := false
	text := types.TypeString(types.Default(t.Type), func(p *types.Package) string {
		if p == g.pkg {
			return ""
		}
		for _, i := range g.file.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil || path != p.Path() {
				continue
			}
			if i.Name != nil {
				return i.Name.Name
			}
			return p.Name()
		}
		nameless = true
		return ""
	})
	if nameless {
		return ""
	}
	return text
}

// within gives the expression with a part of it changed. A constant is one with all that
// it is made of, as only the whole has a type.
func (g *golang) within(e ast.Expr, from, to token.Pos, text string) *wrap {
	if g.whole != nil && g.whole.Pos() <= e.Pos() && e.End() <= g.whole.End() {
		e = g.whole
	}
	t := g.named(e)
	if b, ok := e.(*ast.BinaryExpr); ok && comparison(b.Op) {
		t = "bool"
	}
	start, end := g.at(e.Pos()), g.at(e.End())
	return g.instead(e, t, string(g.src[start:g.at(from)])+text+string(g.src[g.at(to):end]))
}

// instead gives one expression or the other.
func (g *golang) instead(e ast.Expr, t, other string) *wrap {
	if strings.Contains(other, "\n") {
		if strings.ContainsAny(other, "{`") || strings.Contains(other, "//") {
			return nil // on one line it would be something else
		}
		other = strings.ReplaceAll(other, "\n", " ")
	}
	if t == "" {
		return nil
	}
	return g.wrap(e, func(id int, code string) string {
		return fmt.Sprintf("func() %s { if mutate__(%d) { return %s }; return %s }()", t, id, other, code)
	})
}

// wrap puts the code of a node into other code.
func (g *golang) wrap(n ast.Node, with func(id int, code string) string) *wrap {
	w := &wrap{start: g.at(n.Pos()), end: g.at(n.End()), make: with}
	if d := g.consts; d != nil && n.Pos() < d.End() {
		if strings.Contains(g.code(d), "iota") {
			return nil
		}
		w.consts = g.at(d.Pos())
	}
	return w
}

// turned turns a truth value round.
func (g *golang) turned(e ast.Expr) *wrap {
	return g.wrap(e, func(id int, code string) string {
		return fmt.Sprintf("(mutate__(%d) != (%s))", id, code)
	})
}

// unless leaves a statement out.
func (g *golang) unless(s ast.Stmt) *wrap {
	return g.wrap(s, func(id int, code string) string {
		return fmt.Sprintf("if !mutate__(%d) { %s }", id, code)
	})
}

func comparison(op token.Token) bool {
	switch op {
	case token.LSS, token.LEQ, token.GTR, token.GEQ, token.EQL, token.NEQ, token.LAND, token.LOR:
		return true
	}
	return false
}
