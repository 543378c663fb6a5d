package session

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// A Session has few methods, those that are not exported included (which reflection does
// not see): what is decided is the ledger's.
func TestSessionHasFewMethods(t *testing.T) {
	const most = 20
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var methods []string
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && receiver(m) == "Session" {
				methods = append(methods, m.Name.Name)
			}
		}
	}
	if len(methods) == 0 || len(methods) > most {
		t.Errorf("Session has %d methods, and may have %d: %v", len(methods), most, methods)
	}
}

// receiver is the type that has the method.
func receiver(m *ast.FuncDecl) string {
	of := m.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
