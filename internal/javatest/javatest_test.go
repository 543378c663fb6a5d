package javatest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestUnlocked shows that a test with this counter can fail: without a lock it
// loses increments, and people meet inside.
func TestUnlocked(t *testing.T) {
	const each = 50
	c := NewCounter(t)
	peers := []*Peer{Unlocked(t, c, "java-1"), Unlocked(t, c, "java-2")}
	var all sync.WaitGroup
	for _, p := range peers {
		all.Go(func() {
			if err := p.Count(Write, each); err != nil {
				t.Error(err)
			}
		})
	}
	all.Go(func() {
		for range each {
			if err := c.Add("go"); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	n, err := c.get()
	if err != nil {
		t.Fatal(err)
	}
	if most := each * (len(peers) + 1); n >= most || n < each {
		t.Errorf("the counter stands at %d after %d increments without a lock", n, most)
	}
	log, err := os.ReadFile(c.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if len(read(string(log))) == 0 {
		t.Errorf("nobody met anybody inside:\n%s", log)
	}
	if n := strings.Count(string(log), " enter write\n"); n != each*(len(peers)+1) {
		t.Errorf("%d entries in the log, want %d", n, each*(len(peers)+1))
	}
}

// TestOneAtATime: the counter counts where nobody meets anybody.
func TestOneAtATime(t *testing.T) {
	c := NewCounter(t)
	p := Unlocked(t, c, "java")
	for range 3 {
		if err := p.Count(Write, 2); err != nil {
			t.Fatal(err)
		}
		if err := c.Add("go"); err != nil {
			t.Fatal(err)
		}
		if err := p.Count(Read, 1); err != nil {
			t.Fatal(err)
		}
		if err := c.Look("go"); err != nil {
			t.Fatal(err)
		}
	}
	c.Check(t, 9)
	if !p.Enter(Write, time.Second) {
		t.Error("a lock that locks nothing is held")
	}
	p.Leave(Write)
}

// TestSidecar: goroutines of two leases on one store count together.
func TestSidecar(t *testing.T) {
	b := embedded.New()
	t.Cleanup(func() { _ = b.Close() })
	c := NewCounter(t)
	var all sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		s := NewSidecar(t, b, name, lock.MaxTTL)
		all.Go(func() {
			for _, m := range []Mode{Write, Read, Write} {
				if err := s.Count(t.Context(), c, "counter", 3, m, 5); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	c.Check(t, 60)
}

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name string
		log  string
		want string // part of the only complaint; empty: none
	}{
		{"nothing", "", ""},
		{"one after the other", "a enter write|a leave write|b enter read|b leave read", ""},
		{"readers together", "a enter read|b enter read|a leave read|b leave read", ""},
		{"two writers", "a enter write|b enter write|a leave write|b leave write", "b enters (write)"},
		{"a reader beside a writer", "a enter write|b enter read|a leave write|b leave read", "b enters (read)"},
		{"a writer beside a reader", "a enter read|b enter write|a leave read|b leave write", "b enters (write)"},
		{"a change", "a enter read|a saw a change|a leave read", "a saw a change"},
		{"no end", "a enter write", "never left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := read(strings.ReplaceAll(tt.log, "|", "\n"))
			if tt.want == "" && len(got) != 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("complaints %q; want %q", got, tt.want)
			}
		})
	}
	if got := read(strings.Repeat("a enter write\n", 100)); len(got) > maxComplaints+1 {
		t.Errorf("%d complaints", len(got))
	}
}

// TestBuildOnce: whoever comes while another builds waits for it and builds
// nothing.
func TestBuildOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the Java programs")
	}
	cache := t.TempDir()
	var all sync.WaitGroup
	dirs := make([]string, 3)
	for i := range dirs {
		all.Go(func() {
			dir, err := build(t.Context(), cache)
			if err != nil {
				t.Error(err)
			}
			dirs[i] = dir
		})
	}
	all.Wait()
	if fmt.Sprint(dirs) != fmt.Sprint([]string{dirs[0], dirs[0], dirs[0]}) {
		t.Errorf("folders %q", dirs)
	}
	left, err := os.ReadDir(cache)
	if err != nil || len(left) != 2 { // the lock and the programs
		t.Errorf("left in the cache: %v, %v", left, err)
	}
}

func TestNoTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := build(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("without tools: %v", err)
	}
}
