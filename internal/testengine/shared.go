package testengine

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"
)

// startTimeout covers the pull of an image.
const startTimeout = 5 * time.Minute

// New starts a server of the test's own.
func New(t testing.TB, k *Kind) Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	s, err := Start(ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close %s: %v", s.Origin(), err)
		}
	})
	t.Logf("%s: %s", k, s.Origin())
	return s
}

// Shared is the server of that kind that all tests of the package share. It is
// started when it is first asked for. Tests keep apart by the names that they
// use. The package's TestMain must run Main, which ends it.
func Shared(t testing.TB, k *Kind) Server {
	t.Helper()
	s, err := shared.get(k)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s", k, s.Origin())
	return s
}

// Main wraps a package's tests so that shared servers end after them, before
// anybody looks for leaks. Give it to goleak.VerifyTestMain or call Run.
func Main(m interface{ Run() int }) interface{ Run() int } {
	return &mainRunner{m: m}
}

// SideBySide lets n of the package's parallel tests run at a time, unless the
// command line says how many. Tests of stores wait most of the time, and go test
// runs no more of them at a time than there are processors. Call it in TestMain.
func SideBySide(n int) {
	if !flag.Parsed() {
		flag.Parse()
	}
	const name = "test.parallel"
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == name })
	if said || n < runtime.GOMAXPROCS(0) {
		return
	}
	if err := flag.Set(name, strconv.Itoa(n)); err != nil {
		panic(err) // not the program of a test
	}
}

type mainRunner struct{ m interface{ Run() int } }

// gcPercent lets a test process take more memory between two runs of the garbage collector, which take a tenth of its
// processor time, or more. What tests measure of memory is what is left after one.
const gcPercent = 400

func (r *mainRunner) Run() int {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	shared.open()
	code := r.m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintf(os.Stderr, "close the shared servers: %v\n", err)
		code = max(code, 1)
	}
	return code
}

// pool are the shared servers.
type pool struct {
	mu      sync.Mutex
	running bool // between open and close
	servers map[*Kind]*sharedServer
}

type sharedServer struct {
	once sync.Once
	s    Server
	err  error
}

var shared pool

func (p *pool) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, p.servers = true, map[*Kind]*sharedServer{}
}

func (p *pool) get(k *Kind) (Server, error) {
	p.mu.Lock()
	if !p.running {
		p.mu.Unlock()
		return nil, fmt.Errorf("TestMain must run testengine.Main(m) to share a %s", k)
	}
	e := p.servers[k]
	if e == nil {
		e = &sharedServer{}
		p.servers[k] = e
	}
	p.mu.Unlock()
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		e.s, e.err = Start(ctx, k)
	})
	return e.s, e.err
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
	var first error
	for k, e := range p.servers {
		if e.s == nil {
			continue
		}
		if err := e.s.Close(); err != nil && first == nil {
			first = fmt.Errorf("%s: %w", k, err)
		}
	}
	return first
}
