package localapi

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/session"
)

// TestPodsComeAndGo: of 1,000 pods that come and end, many before their socket is there, nothing is left: no folder, which
// nobody would remove again, no open file, no goroutine, and no line in the log.
func TestPodsComeAndGo(t *testing.T) {
	dir := sideFolder(t)
	var out logLines
	s := start(t, logTo(&out), func(so *session.Options, lo *Options) { so.Sidecar, lo.SideDoors = "first", dir })
	const pods, atOnce = 1000, 8
	var there []string
	end := func(name string) {
		// As the driver does. What was being made there may come after the first look.
		gone := filepath.Join(dir, "."+name)
		if err := os.Rename(filepath.Join(dir, name), gone); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the folder is gone", func() bool { return os.RemoveAll(gone) == nil })
	}
	begin := func(n int) string {
		name := fmt.Sprintf("8f1c0a52-3c1b-4a6e-9d7e-%012x", n)
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	// What the sidecar starts but once is counted from the beginning.
	one := begin(pods)
	eventually(t, "it is served", func() bool { return nameAt(sideDoor(dir, one)) == "first" })
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	end(one)
	for n := range pods {
		name := begin(n)
		if there = append(there, name); len(there) > n%atOnce {
			end(there[0])
			there = there[1:]
		}
	}
	for _, name := range there {
		eventually(t, "it is served", func() bool { return nameAt(sideDoor(dir, name)) == "first" })
		end(name)
	}
	t.Cleanup(func() {
		if t.Failed() {
			stacks := make([]byte, 1<<20)
			t.Logf("%d files and %d goroutines, %d and %d before\n%s", openFiles(t), runtime.NumGoroutine(), files, goroutines, stacks[:runtime.Stack(stacks, true)])
		}
	})
	eventually(t, "nothing is left", func() bool { return openFiles(t) < files && runtime.NumGoroutine() < goroutines }) // that one had some, too
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%d folders are left: %v", len(entries), err)
	}
	s.stop()
	if strings.Contains(out.String(), "ERROR") {
		t.Errorf("the log: %s", out.String())
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestFolderComesLater: the kernel tells of new pods also where their folder comes later than the sidecar, or again.
func TestFolderComesLater(t *testing.T) {
	dir := filepath.Join(socketDir(t), "sockets")
	start(t, func(so *session.Options, lo *Options) { so.Sidecar, lo.SideDoors = "first", dir })
	for range 3 {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the kernel tells", func() bool { return inotifyWatches(t) == 1 })
		if err := os.Rename(dir, dir+".old"); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(dir + ".old"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it tells nothing", func() bool { return inotifyWatches(t) == 0 })
	}
}

// inotifyWatches is how many this process has.
func inotifyWatches(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be closed by now
		n += strings.Count(string(text), "inotify wd:")
	}
	return n
}
