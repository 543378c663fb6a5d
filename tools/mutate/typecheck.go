package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// source is a package that is parsed and has its types.
type source struct {
	fset  *token.FileSet
	files map[string]*ast.File // by path
	text  map[string][]byte
	types *types.Package
	info  *types.Info
}

func load(ctx context.Context, root string, p pkg) (*source, error) {
	out, err := output(ctx, root, "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", p.ImportPath)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for line := range strings.Lines(out) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[path] = file
	}
	s := &source{
		fset: token.NewFileSet(), files: map[string]*ast.File{}, text: map[string][]byte{},
		info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}},
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		src, err := os.ReadFile(path) //nolint:gosec // a file of the tree
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(s.fset, path, src, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		s.files[path], s.text[path] = f, src
	}
	conf := types.Config{Importer: importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) {
		file := exports[path]
		if file == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(file) //nolint:gosec // made by go list
	})}
	if s.types, err = conf.Check(p.ImportPath, s.fset, files, s.info); err != nil {
		return nil, err
	}
	return s, nil
}
