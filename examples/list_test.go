package examples

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// While a shard of the store is away, a list has what the others have, and then says in each language which one
// is missing. A watch says it first.
func TestListWithoutAShard(t *testing.T) {
	t.Parallel()
	long(t)
	shards := []testengine.Server{testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)}
	s := serve(t, "--ttl", "30s", "--store", shards[0].URL()+"?shard=a", "--store", shards[1].URL()+"?shard=b")
	session, err := s.client.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	const locks = 20
	for i := range locks {
		if _, err := session.Acquire(t.Context(), fmt.Sprintf("customer/%02d", i), client.AcquireOptions{Wait: patience}); err != nil {
			t.Fatal(err)
		}
	}
	testengine.Crash(t, shards[1], testengine.DropData)
	var want []string
	var lacks *client.IncompleteError
	for l, err := range s.client.List(t.Context(), "") {
		if err != nil && !errors.As(err, &lacks) {
			t.Fatal(err)
		} else if err == nil {
			want = append(want, l.GetResource())
		}
	}
	if lacks == nil || len(want) == 0 || len(want) == locks {
		t.Fatalf("Go: %d of %d, %v", len(want), locks, lacks)
	}
	want = append(want, "lacks b", "MISSING b")
	for language, start := range map[string]func() *program{
		"Python": func() *program { return launch(t, append(s.env(), pythonEnv...), python(t), "testdata/list.py") },
		"Node":   func() *program { return launch(t, s.env(), "node", "testdata/list.js") },
		"PHP":    func() *program { return launch(t, s.env(), "php", "testdata/list.php") },
		"Ruby":   func() *program { return launch(t, s.env(), "ruby", "testdata/list.rb") },
		"Rust":   func() *program { return launch(t, s.env(), buildRust(t)["list example"]) },
		"Java": func() *program {
			buildJava(t)
			return launch(t, s.env(), "java", "-cp", javaJar, "io.github.locksidecar.scenarios.ListLocks")
		},
	} {
		p := start()
		code := p.wait()
		if got := strings.Fields(p.out.String()); code != 0 || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: status %d, %v, want %v\n%s", language, code, got, want, &p.err)
		}
	}
}
