package testengine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var allKinds = []*Kind{
	Redis, RedisCluster, RedisClusterReplicas, RedisSentinel, ZooKeeper, ZooKeeperEnsemble, MariaDB, MySQL, MariaDBPair, MySQLPair,
	Postgres, PostgresPair, PostgresBouncer, Etcd, EtcdCluster,
	RedisFakeTime, MariaDBFakeTime, MySQLFakeTime, PostgresFakeTime,
}

// origin makes sure that a test has a server that can be treated badly.
func origin(t *testing.T, k *Kind) {
	t.Helper()
	if os.Getenv(k.urlEnv) != "" {
		t.Skipf("%s names a server of somebody else's", k.urlEnv)
	}
}

// One server of each kind goes through all that can be done to it. Those with a
// clock of their own are the same beside it.
func TestKinds(t *testing.T) {
	for _, k := range allKinds {
		if k == RedisFakeTime || k == MariaDBFakeTime || k == MySQLFakeTime || k == PostgresFakeTime {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			s := New(t, k)
			t.Logf("%s after %v", s.URL(), time.Since(begin))
			run := func(name string, f func(*testing.T, Server)) {
				t.Run(name, func(t *testing.T) { f(t, s) })
			}
			run("Pause", testPause)
			run("Restart", testRestart)
			run("Through", testThrough)
			switch k {
			case RedisCluster:
				run("Nodes", testClusterNodes)
			case RedisClusterReplicas, RedisSentinel:
				run("FailOver", testFailOver)
			case ZooKeeper:
				run("SessionExpires", testSessionExpires)
			case ZooKeeperEnsemble:
				run("Nodes", testEnsembleNodes)
			case MariaDB, MySQL:
				run("UserWithPassword", testUserWithPassword)
				run("TLS", testTLS)
			case Postgres:
				run("UserWithPassword", testPostgresUser)
				run("TLS", testPostgresTLS)
			case PostgresPair:
				run("FailOver", testFailOver)
				run("ReadOnly", testPostgresReplica)
			case MariaDBPair, MySQLPair:
				run("FailOver", testFailOver)
				run("CatchUp", testReplicaCatchesUp)
				run("ReadOnly", testReadOnlyAfterFailOver)
			}
		})
	}
}

func testPause(t *testing.T, s Server) {
	c := newClient(t, s.URL())
	set(t, c, "1")
	resume := Pause(t, s)
	wantError(t, c)
	resume()
	wantAll(t, c, "1")
}

func testRestart(t *testing.T, s Server) {
	c := newClient(t, s.URL())
	set(t, c, "1")
	start := Crash(t, s, KeepData)
	wantError(t, c)
	start()
	wantAll(t, c, "1")
	Restart(t, s, DropData)
	wantAll(t, c, "")
}

func testThrough(t *testing.T, s Server) {
	p := Through(t, s)
	other := newClient(t, s.URL())
	c := newClient(t, p.URL())
	set(t, c, "1")
	p.Inject(Cut)
	for _, key := range keys(t) { // no node is reached by another road
		if _, err := c.get(within(t, 100*time.Millisecond), key); err == nil {
			t.Fatalf("%s was read past the proxy", key)
		}
	}
	wantAll(t, other, "1")
	heal(t, p)
	wantAll(t, c, "1")

	key := keys(t)[0]
	p.Mute(key)
	if _, err := c.get(within(t, 300*time.Millisecond), key); err == nil {
		t.Fatal("the answer came")
	}
	heal(t, p)
	wantAll(t, c, "1")

	lost := p.LoseReply(key, Cut)
	if err := c.put(within(t, time.Second), key, "2"); err == nil {
		t.Fatal("the reply came")
	}
	wantSprung(t, lost)
	if got, err := other.get(within(t, 20*time.Second), key); err != nil || got != "2" {
		t.Fatalf("the server has %q, %v; want 2", got, err)
	}
}

// The repairs run when a test ends in the middle of a fault.
func TestRepair(t *testing.T) {
	s := Shared(t, Redis)
	c := newClient(t, s.URL())
	for name, fault := range map[string]func(t *testing.T){
		"pause": func(t *testing.T) { Pause(t, s) },
		"crash": func(t *testing.T) { Crash(t, s, DropData) },
	} {
		t.Run(name, fault)
		set(t, c, "1")
	}
}

func testClusterNodes(t *testing.T, s Server) {
	nodes := Nodes(t, s)
	if len(nodes) != clusterMasters {
		t.Fatalf("%d nodes", len(nodes))
	}
	c := newClient(t, s.URL())
	set(t, c, "1")
	Restart(t, nodes[0], DropData)
	lost := 0
	for _, k := range keys(t) {
		value, err := c.get(within(t, 5*time.Second), k)
		if err != nil {
			t.Fatal(err)
		}
		if value == "" {
			lost++
		}
	}
	if lost == 0 || lost == len(keys(t)) {
		t.Fatalf("one node of three lost %d of %d keys", lost, len(keys(t)))
	}
}

func testFailOver(t *testing.T, s Server) {
	direct, proxied := newClient(t, s.URL()), newClient(t, Through(t, s).URL())
	set(t, direct, "1")
	for _, tt := range []struct {
		d    Data
		want string
	}{{KeepData, "1"}, {DropData, ""}, {KeepData, ""}} {
		begin := time.Now()
		FailOver(t, s, tt.d)
		t.Logf("took %v", time.Since(begin))
		wantAll(t, direct, tt.want)
		wantAll(t, proxied, tt.want)
	}
}

func TestEnvironmentURL(t *testing.T) {
	own := Shared(t, Redis)
	t.Setenv(Redis.urlEnv, own.URL())
	s := New(t, Redis)
	if s.URL() != own.URL() {
		t.Fatalf("%s; want %s", s.URL(), own.URL())
	}
	if _, ok := s.(Pauser); ok {
		t.Error("a server of somebody else's can be paused")
	}
	p := Through(t, s)
	c := newClient(t, p.URL())
	set(t, c, "1")
	p.Inject(Cut)
	wantError(t, c)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantAll(t, newClient(t, own.URL()), "1")

	t.Setenv(RedisCluster.urlEnv, "redis+cluster://"+strings.TrimPrefix(own.URL(), "redis://"))
	s = New(t, RedisCluster)
	if _, ok := s.(Proxier); ok {
		t.Error("the addresses that somebody else's nodes tell can be rewritten")
	}

	t.Setenv(Redis.urlEnv, "redis://127.0.0.1:1")
	if _, err := Start(t.Context(), Redis); err == nil || !strings.Contains(err.Error(), Redis.urlEnv) {
		t.Errorf("%v; want an error that names %s", err, Redis.urlEnv)
	}
}

func TestSkipWithReason(t *testing.T) {
	f := &fakeTB{TB: t}
	func() {
		defer func() { _ = recover() }()
		Pause(f, &external{origin: "Redis of X"})
	}()
	if f.skipped != "Redis of X cannot be paused" {
		t.Errorf("skipped because %q", f.skipped)
	}
}

// fakeTB notes why a test is skipped.
type fakeTB struct {
	testing.TB
	skipped string
}

func (f *fakeTB) Skipf(format string, args ...any) {
	f.skipped = fmt.Sprintf(format, args...)
	panic("skipped")
}

func TestNothingToStart(t *testing.T) {
	for _, k := range allKinds {
		t.Run(k.name, func(t *testing.T) {
			origin(t, k)
			t.Setenv("PATH", t.TempDir())
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			t.Setenv("LOCKSIDECAR_TEST_WITH", "local")
			_, err := Start(t.Context(), k)
			if !errors.Is(err, exec.ErrNotFound) {
				t.Fatalf("%v; want that a program is not found", err)
			}
			for _, want := range []string{k.install, k.urlEnv, k.image.env} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
		})
	}
	t.Setenv("LOCKSIDECAR_TEST_WITH", "nonsense")
	if _, err := Start(t.Context(), Redis); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v; want an error about the setting", err)
	}
}

func TestPortTaken(t *testing.T) {
	for _, k := range []*Kind{Redis, ZooKeeper, MariaDB, Postgres, Etcd} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			m, err := newLocal(nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closed(t, closer(m.close)) })
			_, err = k.start(within(t, 20*time.Second), m, []int{takenPort(t)})
			if errors.Is(err, exec.ErrNotFound) {
				t.Skip("is not on this machine")
			}
			if !errors.Is(err, errPortTaken) {
				t.Errorf("%v; want that the port was taken", err)
			}
		})
	}
}

func TestSplitURL(t *testing.T) {
	for _, tt := range []struct{ url, before, hosts, after string }{
		{"redis://a", "redis://", "a:6379", ""},
		{"redis+sentinel://a,b:1/x", "redis+sentinel://", "a:26379 b:1", "/x"},
		{"zk://u:p@a:1,b,[::1]/chroot?x=y", "zk://u:p@", "a:1 b:2181 [::1]:2181", "/chroot?x=y"},
		{"postgres://u@a/x", "postgres://u@", "a:5432", "/x"},
		{"etcd://a,b:1/x", "etcd://", "a:2379 b:1", "/x"},
		{"mysql://u@h@a?x=y@z", "mysql://u@h@", "a:3306", "?x=y@z"},
	} {
		before, hosts, after := splitURL(tt.url)
		if before != tt.before || strings.Join(hosts, " ") != tt.hosts || after != tt.after {
			t.Errorf("%s: %q, %q, %q", tt.url, before, hosts, after)
		}
	}
}

func TestSharedNeedsMain(t *testing.T) {
	if _, err := (&pool{}).get(Redis); err == nil || !strings.Contains(err.Error(), "testengine.Main") {
		t.Errorf("%v; want an error that names testengine.Main", err)
	}
}

// What is started on this machine ends with a test process that is killed, and
// a later one removes its folder.
func TestKilledTestProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	if _, err := fmt.Sscan(line, &pid, &dir); err != nil {
		t.Fatal(err)
	}
	sweep() // must leave alone what is in use
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		t.Fatalf("the folder of a running process was removed: %v", err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, "the server ends", func() bool { return !running(pid) })
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

// Servers have their data in memory where there is room, and nobody has said where temporary files are to be. Its folder is swept
// as others are.
func TestDataInMemory(t *testing.T) {
	if hasRoom(memoryDir, 1<<62) || hasRoom("/proc", 0) {
		t.Error("there is room where there is none")
	}
	t.Run("TMPDIR is set", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		m, err := newLocal(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.(*local).dir; filepath.Dir(got) != dir {
			t.Errorf("%s is not in %s", got, dir)
		}
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", "")
	m, err := newLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	base := os.TempDir()
	if hasRoom(memoryDir, room) {
		base = memoryDir
	}
	dir := m.(*local).dir
	if filepath.Dir(dir) != filepath.Clean(base) {
		t.Errorf("%s is not in %s", dir, base)
	}
	if err := m.close(); err != nil {
		t.Error(err)
	}
	left, err := os.MkdirTemp(base, dirPattern)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.WriteFile(filepath.Join(left, "lock"), nil, 0o600), os.Chtimes(left, old, old)); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a process that is gone is still there: %v", err)
	}
}

// running is false also for a process that has ended and that nobody has
// waited for.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
