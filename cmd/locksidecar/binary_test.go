package main

import (
	"debug/buildinfo"
	"debug/elf"
	"slices"
	"strings"
	"testing"
)

// The linker leaves out the methods that nobody calls, unless a method may be called by
// its name, as text/template does, also by way of cobra's SetVersionTemplate and its like.
// It then keeps every method of every type: 40 % more program, 2 MiB more in memory.
func TestMethodsThatNobodyCallsAreLeftOut(t *testing.T) {
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	called := false
	for _, s := range symbols {
		const client = "github.com/redis/go-redis/v9.(*Client)."
		switch s.Name {
		case client + "Process":
			called = true
		case client + "GeoAdd":
			t.Errorf("%s is in the program; find out who calls methods by name with go build -ldflags=-dumpdep | grep ReflectMethod", s.Name)
		}
	}
	if !called {
		t.Error("found no method of the client of Redis: is this test's name for it still right?")
	}
}

// What is in the program costs each sidecar memory, whatever its store is: of each library
// something runs at start. Etcd's own client, with what it imports, was 1.3 of 19.8 MiB.
func TestLibrariesOfTestsAreLeftOut(t *testing.T) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, d := range info.Deps {
		modules = append(modules, d.Path)
	}
	if !slices.Contains(modules, "google.golang.org/grpc") {
		t.Errorf("the program says that it consists of %q: is that right?", modules)
	}
	for _, m := range modules {
		for _, unwanted := range []string{"go.etcd.io/", "go.uber.org/zap", "github.com/coreos/", "github.com/golang/protobuf", "github.com/testcontainers/", "github.com/google/go-cmp", "github.com/container-storage-interface/", "k8s.io/"} {
			if strings.HasPrefix(m, unwanted) {
				t.Errorf("%s is in the program; find out who imports it with go list -deps", m)
			}
		}
	}
}
