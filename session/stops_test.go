package session

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// An acquire makes few stops between the app and the store.
//
// A stop is a function or a method of session or session/ledger that lies on some way from
// Session.Acquire to the Acquire of the lease, the two ends included: whoever reads how a lock is
// asked for walks through it. What such a function only asks on its way, and which does not lead to
// the store, is no stop. A way leads from a function to each one that its text names, whether
// it calls it, hands it on, or runs it on another goroutine. So to hide a stop in a
// variable or a closure makes none less. The test also asks for a lock, and looks that
// what stands on the stack at the store is among the stops. It is an ordinary acquire: what
// leads only an attempt at something that is done once to the store, or looks for a deadlock
// beside a request, is aside.
func TestAnAcquireMakesFewStops(t *testing.T) {
	const most = 12
	named, leads := namesIn(t, ".", "./ledger")
	for _, aside := range []string{"session.beginOnce", "session.inquire"} {
		if named[aside] == nil {
			t.Fatalf("there is no %s", aside)
		}
		delete(leads, named[aside])
	}
	start := named["session.(*Session).Acquire"]
	if start == nil {
		t.Fatal("there is no Session.Acquire")
	}
	reached := reach(start, leads)
	var stops []string
	for name, f := range named {
		if reached[f] && asks(reach(f, leads)) {
			stops = append(stops, name)
		}
	}
	slices.Sort(stops)
	if len(stops) < 3 || len(stops) > most {
		t.Errorf("%d stops, and %d are enough: %v", len(stops), most, stops)
	}
	t.Logf("%d stops: %v", len(stops), stops)
	stack := stackAtTheStore(t)
	if len(stack) == 0 {
		t.Error("nothing of this package stands on the stack at the store")
	}
	for _, f := range stack {
		if !slices.Contains(stops, f) {
			t.Errorf("an acquire walks through %s, which is not among the stops %v", f, stops)
		}
	}
}

// graph has the functions that a function names.
type graph map[*types.Func][]*types.Func

// reach are the functions that a function leads to, and itself.
func reach(f *types.Func, leads graph) map[*types.Func]bool {
	seen := map[*types.Func]bool{f: true}
	for next := []*types.Func{f}; len(next) > 0; next = next[1:] {
		for _, g := range leads[next[0]] {
			if !seen[g] {
				seen[g] = true
				next = append(next, g)
			}
		}
	}
	return seen
}

// asks tells whether the Acquire of a lease is among what was reached.
func asks(reached map[*types.Func]bool) bool {
	for f := range reached {
		if f.FullName() == "(github.com/locksidecar/locksidecar/lock.Lease).Acquire" {
			return true
		}
	}
	return false
}

// namesIn reads packages: their functions, and what each of these names.
func namesIn(t *testing.T, dirs ...string) (named map[string]*types.Func, leads graph) {
	t.Helper()
	named, leads = make(map[string]*types.Func), make(graph)
	files := token.NewFileSet()
	compiled := importer.ForCompiler(files, "gc", exports(t))
	for _, dir := range dirs {
		var parsed []*ast.File
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		info := &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object)}
		pkg, err := (&types.Config{Importer: compiled}).Check(dir, files, parsed, info)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range parsed {
			for _, d := range file.Decls {
				decl, is := d.(*ast.FuncDecl)
				if !is {
					continue
				}
				f := info.Defs[decl.Name].(*types.Func)
				named[short(pkg.Name(), decl)] = f
				ast.Inspect(decl, func(n ast.Node) bool {
					if id, is := n.(*ast.Ident); is {
						if g, is := info.Uses[id].(*types.Func); is {
							leads[f] = append(leads[f], g.Origin())
						}
					}
					return true
				})
			}
		}
	}
	return named, leads
}

// short is the name of a function as the runtime says it, behind the path of its package.
func short(pkg string, d *ast.FuncDecl) string {
	switch {
	case d.Recv == nil:
		return pkg + "." + d.Name.Name
	case receiverIsPointer(d):
		return pkg + ".(*" + receiver(d) + ")." + d.Name.Name
	}
	return pkg + "." + receiver(d) + "." + d.Name.Name
}

func receiverIsPointer(d *ast.FuncDecl) bool {
	_, is := d.Recv.List[0].Type.(*ast.StarExpr)
	return is
}

// exports finds what the compiler has written of the packages that are imported.
func exports(t *testing.T) importer.Lookup {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	at := make(map[string]string)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		at[p.ImportPath] = p.Export
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(at[path]) }
}

// stackAtTheStore are the functions of this package that stand on the stack when an acquire
// that nobody is in the way of has come to the store.
func stackAtTheStore(t *testing.T) (stack []string) {
	t.Helper()
	bubble(t, func(t *testing.T, e *env) {
		var store *lookout
		s := e.sidecar(func(o *Options) {
			store = &lookout{Backend: o.Backend}
			o.Backend = store
		}).session()
		if _, err := s.Acquire(t.Context(), AcquireRequest{Resource: "r", Mode: lock.Exclusive}); err != nil {
			t.Fatal(err)
		}
		stack = store.stack
	})
	return stack
}

// lookout is a store that notes who stands on the stack when a lease is asked.
type lookout struct {
	lock.Backend
	stack []string
}

func (w *lookout) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := w.Backend.OpenLease(ctx, o)
	return &lookoutLease{l, w}, err
}

type lookoutLease struct {
	lock.Lease
	w *lookout
}

func (l *lookoutLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name := f.Function[strings.LastIndex(f.Function, "/")+1:]
		if strings.HasPrefix(name, "session.") || strings.HasPrefix(name, "ledger.") {
			name, _, _ = strings.Cut(name, ".func") // a closure stands in its function
			l.w.stack = append(l.w.stack, name)
		}
	}
	return l.Lease.Acquire(ctx, q)
}
