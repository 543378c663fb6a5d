package testengine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestServersTakeClassesFromAnArchive: three that start at a time make one archive, and a later one has it in its memory. One
// that finds a broken one starts without it.
func TestServersTakeClassesFromAnArchive(t *testing.T) {
	caches := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", caches)
	start := func() *store {
		m, err := newLocal(nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		ports, err := freePorts(t.Context(), 1)
		if err != nil {
			t.Error(err)
			return nil
		}
		s, err := startZooKeeper(within(t, time.Minute), m, ports)
		t.Cleanup(func() {
			if err := m.close(); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Error(err)
			return nil
		}
		return s.(*store)
	}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { start() })
	}
	all.Wait()
	files, err := filepath.Glob(filepath.Join(caches, cacheName, "*"))
	if err != nil || len(files) != 1 || !strings.HasSuffix(files[0], ".jsa") {
		t.Fatalf("the cache has %v, %v, want one archive", files, err)
	}
	s := start()
	if s == nil {
		t.FailNow()
	}
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.nodes[0].proc.pid()), "maps"))
	if err != nil || !strings.Contains(string(maps), files[0]) {
		t.Errorf("the server does not have %s in its memory: %v", files[0], err)
	}
	if err := os.Remove(files[0]); err != nil { // it may not be written to
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	start()
}
