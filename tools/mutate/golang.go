package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strconv"
	"strings"
)

// inFile lists the changes of a file. pkg and info are of its package: without them
// fewer changes can stand in a schema.
func inFile(fset *token.FileSet, file *ast.File, src []byte, pkg *types.Package, info *types.Info) []Mutant {
	if ast.IsGenerated(file) {
		return nil
	}
	g := &golang{fset: fset, src: src, file: file, pkg: pkg, info: info}
	for _, d := range file.Decls {
		g.walk(d, nil)
	}
	return g.found
}

type golang struct {
	fset   *token.FileSet
	src    []byte
	file   *ast.File
	pkg    *types.Package
	info   *types.Info
	whole  ast.Expr     // the constant that was met last
	consts *ast.GenDecl // the declaration of constants that was met last
	found  []Mutant
}

func (g *golang) at(p token.Pos) int { return g.fset.Position(p).Offset }

func (g *golang) code(n ast.Node) string { return string(g.src[g.at(n.Pos()):g.at(n.End())]) }

// replace notes a change from a position to another, and how it stands in a schema.
func (g *golang) replace(w *wrap, from, to token.Pos, text, what string, args ...any) {
	g.found = append(g.found, Mutant{
		wrap: w,
		Line: g.fset.Position(from).Line, What: fmt.Sprintf(what, args...),
		start: g.at(from), end: g.at(to), text: text,
	})
}

// operators have another one each that is wrong.
var operators = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
}

// walk lists the changes below a node. results are those of the function around it.
func (g *golang) walk(n ast.Node, results *ast.FieldList) {
	ast.Inspect(n, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && g.info != nil && g.info.Types[e].Value != nil && (g.whole == nil || n.Pos() >= g.whole.End()) {
			g.whole = e
		}
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			g.consts = d
		}
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.StructType:
			return false
		case *ast.FuncDecl:
			if n.Body != nil {
				g.walk(n.Body, n.Type.Results)
			}
			return false
		case *ast.FuncLit:
			g.walk(n.Body, n.Type.Results)
			return false
		case *ast.BinaryExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "iota" {
				return false // other numbers for the same names
			}
			if other, ok := operators[n.Op]; ok && !g.joins(n) {
				w := g.within(n, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.String())
				g.replace(w, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.String(), "%s becomes %s", n.Op, other)
			}
		case *ast.IfStmt:
			g.negate(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				g.negate(n.Cond)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						g.negate(e)
					}
				}
			}
		case *ast.BlockStmt:
			g.drop(n.List)
		case *ast.CaseClause:
			g.drop(n.Body)
		case *ast.CommClause:
			g.drop(n.Body)
		case *ast.ReturnStmt:
			g.zero(n, results)
		case *ast.BasicLit:
			g.literal(n)
		case *ast.Ident:
			switch n.Name {
			case "true":
				g.replace(g.turned(n), n.Pos(), n.End(), "false", "true becomes false")
			case "false":
				g.replace(g.turned(n), n.Pos(), n.End(), "true", "false becomes true")
			}
		}
		return true
	})
}

// joins tells whether texts are put together: there is no other operator for them.
func (g *golang) joins(e *ast.BinaryExpr) bool {
	if e.Op != token.ADD || g.info == nil || g.info.Types[e].Type == nil {
		return false
	}
	b, ok := g.info.Types[e].Type.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

// negate turns a condition round, where no operator of it is turned round already.
func (g *golang) negate(cond ast.Expr) {
	if b, ok := cond.(*ast.BinaryExpr); ok && (b.Op == token.EQL || b.Op == token.NEQ) {
		return
	}
	g.replace(g.turned(cond), cond.Pos(), cond.End(), "!("+g.code(cond)+")", "the condition is turned round")
}

// drop leaves out one statement at a time. What it names is still in use for the compiler.
func (g *golang) drop(list []ast.Stmt) {
	for _, s := range list {
		code := g.code(s)
		switch s := s.(type) {
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt:
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.DeferStmt:
			code = g.code(s.Call)
		case *ast.GoStmt:
			code = g.code(s.Call)
		case *ast.BranchStmt:
			if s.Tok != token.FALLTHROUGH {
				g.replace(g.unless(s), s.Pos(), s.End(), "{}", "%s is left out", s.Tok)
			}
			continue
		default:
			continue
		}
		g.replace(g.unless(s), s.Pos(), s.End(), "_ = func() { "+code+" }", "the statement is left out")
	}
}

// zero returns a zero value in place of one result.
func (g *golang) zero(r *ast.ReturnStmt, results *ast.FieldList) {
	if results == nil || len(r.Results) == 0 {
		return
	}
	var types []string
	for _, f := range results.List {
		for range max(1, len(f.Names)) {
			types = append(types, g.code(f.Type))
		}
	}
	if len(types) != len(r.Results) {
		return
	}
	for i, e := range r.Results {
		code, t := g.code(e), types[i]
		switch code {
		case "nil", "0", `""`, "false", "true", t + "{}":
			continue
		}
		g.replace(g.instead(e, t, "*new("+t+")"), e.Pos(), e.End(), fmt.Sprintf("func() %s { _ = func() %s { return %s }; return *new(%s) }()", t, t, code, t),
			"zero is returned in place of %s", short(code))
	}
}

func short(code string) string {
	code = strings.Join(strings.Fields(code), " ")
	if len(code) > 40 {
		code = code[:40] + "…"
	}
	return strings.ReplaceAll(code, " | ", " or ")
}

// literal makes a number larger by one.
func (g *golang) literal(l *ast.BasicLit) {
	if l.Kind != token.INT {
		return
	}
	n, err := strconv.ParseInt(l.Value, 0, 64)
	if err != nil {
		return
	}
	g.replace(g.within(l, l.Pos(), l.End(), strconv.FormatInt(n+1, 10)), l.Pos(), l.End(), strconv.FormatInt(n+1, 10), "%s becomes %d", l.Value, n+1)
}
