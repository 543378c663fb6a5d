package testengine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var allRedis = []*Kind{Redis, RedisCluster, RedisSentinel}

// client opens a go-redis client on a URL as the product would.
func client(t *testing.T, raw string) redis.UniversalClient {
	t.Helper()
	before, hosts, after := splitURL(raw)
	o := &redis.UniversalOptions{
		Addrs: hosts, ContextTimeoutEnabled: true, DialTimeout: time.Second,
		ReadTimeout: time.Second, MaxRetries: -1, MaxRedirects: 1,
		MasterName: strings.TrimPrefix(after, "/"), IsClusterMode: before == "redis+cluster://",
	}
	c := redis.NewUniversalClient(o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// within bounds one question to a server.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// keys are spread over the nodes of a cluster.
func keys(t *testing.T) []string {
	t.Helper()
	var all []string
	for i := range 10 {
		all = append(all, fmt.Sprintf("%s-%d", t.Name(), i))
	}
	return all
}

func set(t *testing.T, c redis.UniversalClient, value string) {
	t.Helper()
	for _, k := range keys(t) {
		if err := c.Set(within(t, 5*time.Second), k, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// wantAll checks all keys, "" for none. The client may need a moment to find
// its way back to the server.
func wantAll(t *testing.T, c redis.UniversalClient, value string) {
	t.Helper()
	for _, k := range keys(t) {
		var got string
		if err := poll(within(t, 20*time.Second), func() error {
			var err error
			got, err = c.Get(within(t, time.Second), k).Result()
			if errors.Is(err, redis.Nil) {
				return nil
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if got != value {
			t.Fatalf("%s is %q; want %q", k, got, value)
		}
	}
}

func wantError(t *testing.T, c redis.UniversalClient) {
	t.Helper()
	if err := c.Set(within(t, 300*time.Millisecond), "x", "", 0).Err(); err == nil {
		t.Fatal("the server answers")
	}
}

// origin makes sure that a test has a server that can be treated badly.
func origin(t *testing.T, k *Kind) {
	t.Helper()
	if os.Getenv(k.urlEnv) != "" {
		t.Skipf("%s names a server of somebody else's", k.urlEnv)
	}
}

func TestStart(t *testing.T) {
	for _, k := range allRedis {
		t.Run(k.name, func(t *testing.T) {
			begin := time.Now()
			s := New(t, k)
			t.Logf("%s after %v", s.URL(), time.Since(begin))
			c := client(t, s.URL())
			set(t, c, "1")
			wantAll(t, c, "1")
		})
	}
}

func TestPause(t *testing.T) {
	for _, k := range allRedis {
		t.Run(k.name, func(t *testing.T) {
			s := Shared(t, k)
			c := client(t, s.URL())
			set(t, c, "1")
			resume := Pause(t, s)
			wantError(t, c)
			resume()
			wantAll(t, c, "1")
		})
	}
}

func TestRestart(t *testing.T) {
	for _, k := range allRedis {
		t.Run(k.name, func(t *testing.T) {
			s := Shared(t, k)
			c := client(t, s.URL())
			set(t, c, "1")
			start := Crash(t, s, KeepData)
			wantError(t, c)
			start()
			wantAll(t, c, "1")
			Restart(t, s, DropData)
			wantAll(t, c, "")
		})
	}
}

// The repairs run when a test ends in the middle of a fault.
func TestRepair(t *testing.T) {
	s := Shared(t, Redis)
	c := client(t, s.URL())
	for name, fault := range map[string]func(t *testing.T){
		"pause": func(t *testing.T) { Pause(t, s) },
		"crash": func(t *testing.T) { Crash(t, s, DropData) },
	} {
		t.Run(name, fault)
		set(t, c, "1")
	}
}

func TestNodes(t *testing.T) {
	s := Shared(t, RedisCluster)
	nodes := Nodes(t, s)
	if len(nodes) != clusterMasters {
		t.Fatalf("%d nodes", len(nodes))
	}
	c := client(t, s.URL())
	set(t, c, "1")
	Restart(t, nodes[0], DropData)
	lost := 0
	for _, k := range keys(t) {
		if err := c.Get(within(t, 5*time.Second), k).Err(); errors.Is(err, redis.Nil) {
			lost++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if lost == 0 || lost == len(keys(t)) {
		t.Fatalf("one node of three lost %d of %d keys", lost, len(keys(t)))
	}
}

func TestFailOver(t *testing.T) {
	s := Shared(t, RedisSentinel)
	direct, proxied := client(t, s.URL()), client(t, Through(t, s).URL())
	set(t, direct, "1")
	for _, tt := range []struct {
		d    Data
		want string
	}{{KeepData, "1"}, {DropData, ""}} {
		begin := time.Now()
		FailOver(t, s, tt.d)
		t.Logf("took %v", time.Since(begin))
		wantAll(t, direct, tt.want)
		wantAll(t, proxied, tt.want)
	}
}

func TestThrough(t *testing.T) {
	for _, k := range allRedis {
		t.Run(k.name, func(t *testing.T) {
			s := Shared(t, k)
			p := Through(t, s)
			other := client(t, s.URL())
			c := client(t, p.URL())
			set(t, c, "1")
			p.Inject(Cut)
			for _, key := range keys(t) { // no node is reached by another road
				if err := c.Get(within(t, 100*time.Millisecond), key).Err(); err == nil {
					t.Fatalf("%s was read past the proxy", key)
				}
			}
			wantAll(t, other, "1")
			if err := p.Heal(); err != nil {
				t.Fatal(err)
			}
			wantAll(t, c, "1")

			key := keys(t)[0]
			lost := p.LoseReply(key, Cut)
			if err := c.Set(within(t, time.Second), key, "2", 0).Err(); err == nil {
				t.Fatal("the reply came")
			}
			wantSprung(t, lost)
			if got, err := other.Get(within(t, time.Second), key).Result(); err != nil || got != "2" {
				t.Fatalf("the server has %q, %v; want 2", got, err)
			}
		})
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
	c := client(t, p.URL())
	set(t, c, "1")
	p.Inject(Cut)
	wantError(t, c)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantAll(t, client(t, own.URL()), "1")

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
	origin(t, Redis)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("LOCKSIDECAR_TEST_WITH", "local")
	_, err := Start(t.Context(), Redis)
	if !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%v; want that redis-server is not found", err)
	}
	for _, want := range []string{installRedis, Redis.urlEnv, Redis.image.env} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	t.Setenv("LOCKSIDECAR_TEST_WITH", "nonsense")
	if _, err := Start(t.Context(), Redis); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v; want an error about the setting", err)
	}
}

func TestPortTaken(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("needs redis-server on this machine")
	}
	s := newServer(t)
	port := s.ln.Addr().String()[strings.LastIndex(s.ln.Addr().String(), ":")+1:]
	m, err := newLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	n := redisNode(m, "x", number, redisArgs(m, number)...)
	if err := n.Start(within(t, 10*time.Second)); !errors.Is(err, errPortTaken) {
		t.Errorf("%v; want that the port was taken", err)
	}
	if err := m.close(); err != nil {
		t.Fatal(err)
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
