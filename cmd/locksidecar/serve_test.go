package main

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

func TestServeRefusesWrongSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"unknown store", nil, []string{"--store", "consul://x"}, `store scheme "consul" is not one of embedded, redis`},
		{"no URL", nil, []string{"--store", "localhost"}, "is not a URL such as"},
		{"unknown option of a store", nil, []string{"--store", "redis://x?colour=red"}, "option colour is not known"},
		{"short TTL", nil, []string{"--ttl", "1ms"}, "--ttl is 1ms: must be 500ms to 10m0s"},
		{"bad mode", nil, []string{"--socket-mode", "rw"}, "octal digits"},
		{"limit", nil, []string{"--max-sessions", "0"}, "--max-sessions is 0: must be at least 1"},
		{"turns", nil, []string{"--local-turns", "1025"}, "--local-turns is 1025: must be 0 to 1024"},
		{"park", nil, []string{"--park", "11s"}, "--park is 11s: must be 0 to 10s"},
		{"deadlock", nil, []string{"--deadlock", "ignore"}, "must be break, report or off"},
		{"drain", nil, []string{"--drain", "-1s"}, "--drain is -1s"},
		{"namespace", nil, []string{"--namespace", "a\tb"}, "namespace"},
		{"uid", nil, []string{"--allow-uid", "root"}, `"root"`},
		{"large uid", nil, []string{"--allow-uid", "4294967296"}, "4294967296 is too large"},
		{"principal", nil, []string{"--principal", "gid"}, "must be uid, unit or pod"},
		{"admin unit alone", nil, []string{"--admin-unit", "web.service"}, "--admin-unit means nothing without --principal unit"},
		{"allowed unit alone", []string{"LOCKSIDECAR_ALLOW_UNIT=web.service"}, nil, "--allow-unit means nothing without --principal unit"},
		{"no unit", nil, []string{"--principal", "unit", "--admin-unit", "web"}, `--admin-unit: "web" is no name of a unit`},
		{"space", nil, []string{"--space", "uid"}, "must be one, unit or namespace"},
		{"space alone", nil, []string{"--space", "unit"}, "--space unit needs --principal unit"},
		{"whose space alone", []string{"LOCKSIDECAR_SPACE_OF=web.service=shop"}, []string{"--principal", "unit"}, "--space-of means nothing without --space unit"},
		{"space of nobody", nil, []string{"--principal", "unit", "--space", "unit", "--space-of", "web=shop"}, `--space-of: "web" is no name of a unit`},
		{"no space", nil, []string{"--principal", "unit", "--space", "unit", "--space-of", "web.service="}, `--space-of: "web.service=" is not UNIT=SPACE`},
		{"two spaces", nil, []string{"--principal", "unit", "--space", "unit", "--space-of", "web.service=a,web.service=b"}, "--space-of: web.service has two spaces"},
		{"slash in a space", nil, []string{"--principal", "unit", "--space", "unit", "--space-of", "web.service=a/b"}, "--space-of web.service=a/b: space must not contain a slash"},
		{"log level", nil, []string{"--log-level", "loud"}, `--log-level is "loud"`},
		{"unknown flag", nil, []string{"--stor", "embedded:"}, "did you mean --store?"},
		{"an argument", nil, []string{"now"}, `unexpected argument "now"`},
		{"env", []string{"LOCKSIDECAR_TTL=soon"}, nil, `environment variable LOCKSIDECAR_TTL: invalid value "soon"`},
		{"file", nil, []string{"--config", write("a.yaml", "stroe: x\n")}, `line 1: unknown key "stroe"; did you mean store?`},
		{"file by env", []string{"LOCKSIDECAR_CONFIG=" + write("b.yaml", "ttl: 1h\n")}, nil, "--ttl is 1h0m0s"},
		{"no such file", nil, []string{"--config", filepath.Join(dir, "none")}, "none: no such file"},
		{"store twice", nil, []string{"--store", "embedded:", "--store-file", "x"}, "give one of them"},
		{"empty secret", nil, []string{"--store-file", write("empty", "\n")}, "empty is empty"},
		{"password for none", nil, []string{"--store-password-file", write("pw", "x")}, "store embedded: takes no password"},
		{"two passwords", nil, []string{"--store", "redis://:a@x", "--store-password-file", write("pw", "x")}, "has a password already"},
		{"exporter", []string{"OTEL_TRACES_EXPORTER=zipkin"}, nil, "OTEL_TRACES_EXPORTER"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cliEnv(t, c.env, append([]string{"serve", "--socket", filepath.Join(dir, "s")}, c.args...)...)
			if got.code != exitUsage || !strings.Contains(got.err, c.want) || strings.Count(got.err, "\n") != 1 {
				t.Errorf("status %d, stderr %q; want %d and one line with %q", got.code, got.err, exitUsage, c.want)
			}
		})
	}
}

func TestServeTakesSettingsFromEverywhere(t *testing.T) {
	dir := socketDir(t)
	secret, file := filepath.Join(dir, "url"), filepath.Join(dir, "c.yaml")
	for path, text := range map[string]string{
		secret: "redis://user:s3cret@127.0.0.1:1/2\n",
		file:   "store-file: " + secret + "\nnamespace: file\nname: file\nttl: 3s\nwait: 1s # a key of run\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "s")
	p := launch(t, []string{"LOCKSIDECAR_CONFIG=" + file, "LOCKSIDECAR_NAME=env", "LOCKSIDECAR_NAMESPACE=env", "LOCKSIDECAR_SOCKET=" + socket, "POD_NAME=pod"},
		binary, "serve", "--namespace", "flag")
	eventually(t, "it serves", func() bool { return strings.Contains(p.out.String(), "curl") })
	got := cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + socket}, "info")
	for _, want := range []string{"redis://user:xxxxx@127.0.0.1:1/2", "namespace:  flag", "sidecar:    env", "ready:      no: no lease: the store is unavailable"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("info lacks %q:\n%s", want, got.out)
		}
	}
	if text := p.out.String() + p.err.String() + got.out; strings.Contains(text, "s3cret") {
		t.Errorf("the password is shown: %s", text)
	}
}

// The line that is printed at the start is what it says.
func TestServePrintsAHolder(t *testing.T) {
	side := serveProgram(t, "--log-level", "off")
	line := ""
	for l := range strings.Lines(side.out.String()) {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "curl ") {
			line = l
		}
	}
	curl := launch(t, nil, "sh", "-c", "exec "+line)
	eventually(t, "curl has the lock", func() bool { return strings.HasPrefix(curl.out.String(), `{"granted":{`) })
	c := dial(t, side)
	if n, _ := status(t, c, "orders/42"); n != 1 {
		t.Errorf("%d holders", n)
	}
	curl.signal(syscall.SIGKILL)
	eventually(t, "the lock is free", func() bool { n, _ := status(t, c, "orders/42"); return n == 0 })
	if side.err.String() != "" {
		t.Errorf("stderr %q", side.err)
	}
}

func TestServeLogsJSON(t *testing.T) {
	p := launch(t, nil, binary, "serve", "--log-format", "json", "--socket", filepath.Join(socketDir(t), "it's"))
	eventually(t, "it serves", func() bool { return strings.Contains(p.err.String(), `"try":"curl -N --unix-socket '`) })
	if p.out.String() != "" {
		t.Errorf("stdout %q", p.out)
	}
	for line := range strings.Lines(p.err.String()) {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("line %q is not JSON", line)
		}
	}
}

func TestServeHTTPAddr(t *testing.T) {
	side := serveProgram(t, "--http-addr", "127.0.0.1:0")
	addr := ""
	eventually(t, "the address is in the log", func() bool {
		m := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(side.err.String())
		if m != nil {
			addr = m[1]
		}
		return m != nil
	})
	eventually(t, "it is ready", func() bool { code, _ := get(t, addr, "/readyz"); return code == 200 })
	if code, _ := get(t, addr, "/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
	if code, text := get(t, addr, "/metrics"); code != 200 || !strings.Contains(text, `locksidecar_build_info{go_version="`) {
		t.Errorf("/metrics: %d %.200s", code, text)
	}
	if code, _ := get(t, addr, "/v1/locks"); code != 404 {
		t.Errorf("the API over TCP: %d", code)
	}
	if got := cli(t, "serve", "--socket", side.socket+"2", "--http-addr", addr); got.code != exitFailure || !strings.Contains(got.err, "address already in use") {
		t.Errorf("a second one on the same address: %+v", got)
	}
}

func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Close = true
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := a.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return a.StatusCode, b.String()
		}
	}
}

func TestTwoSidecarsOnOneSocket(t *testing.T) {
	first := serveProgram(t)
	got := cli(t, "serve", "--socket", first.socket)
	if got.code != exitFailure || !strings.Contains(got.err, "another sidecar serves this socket") {
		t.Errorf("the second: status %d, stderr %q", got.code, got.err)
	}
	if got := cli(t, "run", "--socket", first.socket, "a", "--", "true"); got.code != 0 {
		t.Errorf("the first serves no more: %+v", got)
	}
}

func TestSocketOfADeadSidecar(t *testing.T) {
	dead := serveProgram(t)
	dead.signal(syscall.SIGKILL)
	dead.wait()
	if got := cli(t, "info", "--socket", dead.socket); got.code != exitFailure || !strings.Contains(got.err, "the sidecar that made it is gone; start one with: locksidecar serve") {
		t.Errorf("status %d, stderr %q", got.code, got.err)
	}
	serveAt(t, dead.socket)
	if got := cli(t, "run", "--socket", dead.socket, "a", "--", "true"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestStoreDownAtTheStart(t *testing.T) {
	t.Parallel()
	redis := testengine.New(t, testengine.Redis)
	start := testengine.Crash(t, redis, testengine.DropData)
	side := serveProgram(t, "--store", redis.URL(), "--ttl", "3s", "--http-addr", "127.0.0.1:0")
	var addr string
	eventually(t, "the address is in the log", func() bool {
		if m := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(side.err.String()); m != nil {
			addr = m[1]
		}
		return addr != ""
	})
	if code, text := get(t, addr, "/readyz"); code != 503 || !strings.Contains(text, "not ready: ") {
		t.Errorf("/readyz: %d %s", code, text)
	}
	if got := cli(t, "run", "--socket", side.socket, "--wait", "200ms", "a", "--", "true"); got.code != exitUnavailable || !strings.Contains(got.err, "the store is unavailable") {
		t.Errorf("without a store: %+v", got)
	}
	waiting := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "true")
	time.Sleep(time.Second) // a while in which a flood would show
	if n := strings.Count(side.err.String(), "\n"); n > 10 {
		t.Errorf("%d lines in the log:\n%s", n, side.err)
	}
	start()
	if code := waiting.wait(); code != 0 {
		t.Errorf("who waited for the store: status %d, stderr %q", code, waiting.err)
	}
	eventually(t, "it is ready", func() bool { code, _ := get(t, addr, "/readyz"); return code == 200 })
}

func TestStopWithNothingHeld(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		side := serveProgram(t)
		began := time.Now()
		side.signal(sig)
		if code := side.wait(); code != 0 {
			t.Errorf("%s: status %d", sig, code)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %s", sig, took)
		}
		if _, err := os.Stat(side.socket); !os.IsNotExist(err) {
			t.Errorf("%s: the socket is left: %v", sig, err)
		}
	}
}

func TestStopWaitsForApps(t *testing.T) {
	side := serveProgram(t, "--drain", "90s")
	c := dial(t, side)
	l := hold(t, c, "a")
	s, err := c.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	side.signal(syscall.SIGTERM)
	select {
	case <-s.Draining():
	case <-time.After(patience):
		t.Fatal("the app is not told")
	}
	if got := cli(t, "run", "--socket", side.socket, "b", "--", "true"); got.code != exitUnavailable || !strings.Contains(got.err, "the sidecar is stopping") {
		t.Errorf("a new session: %+v", got)
	}
	select {
	case <-side.exited:
		t.Fatal("it has not waited")
	case <-l.Lost():
		t.Fatalf("the lock is lost: %v", l.Err())
	case <-time.After(300 * time.Millisecond):
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	began := time.Now()
	if code := side.wait(); code != 0 || time.Since(began) > 45*time.Second {
		t.Errorf("status %d after %s", code, time.Since(began))
	}
}

func TestStopReleasesWhatIsLeft(t *testing.T) {
	redis := testengine.Shared(t, testengine.Redis)
	store := []string{"--store", storeURL(redis), "--ttl", "1m", "--namespace", namespace(t), "--drain", "200ms", "--lost-grace", "500ms"}
	side, other := serveProgram(t, store...), serveProgram(t, store...)
	run, log := startWorker(t, "--socket", side.socket, "a")
	next := startSuccessor(t, "--socket", other.socket, "a")
	side.signal(syscall.SIGTERM)
	if code := side.wait(); code != 0 {
		t.Errorf("status %d", code)
	}
	if code := run.wait(); code != exitLost || !strings.Contains(run.err.String(), "the sidecar stops") {
		t.Errorf("run: status %d, stderr %q", code, run.err)
	}
	checkSuccession(t, next, log) // long before the TTL
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	side := serveProgram(t, "--drain", "10m")
	hold(t, dial(t, side), "a")
	side.signal(syscall.SIGTERM)
	eventually(t, "it drains", func() bool { return strings.Contains(side.err.String(), "stopping") })
	side.signal(syscall.SIGTERM)
	if code := side.wait(); code != 128+15 {
		t.Errorf("status %d", code)
	}
}

func TestCompletion(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	hold(t, c, "orders/1")
	hold(t, c, "orders/2")
	hold(t, c, "users/1")
	for _, args := range [][]string{{"get"}, {"list"}, {"watch"}, {"release", "--force"}, {"run"}} {
		got := cli(t, append(append([]string{"__complete"}, args...), "--socket", side.socket, "ord")...)
		if !strings.HasPrefix(got.out, "orders/1\norders/2\n:4\n") {
			t.Errorf("%v: %q", args, got.out)
		}
	}
	if got := cli(t, "__complete", "get", "--socket", side.socket+"x", ""); got.out != ":4\n" {
		t.Errorf("without a sidecar: %q", got.out)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := cli(t, "completion", shell); got.code != 0 || !strings.Contains(got.out, "locksidecar") {
			t.Errorf("%s: %+v", shell, got)
		}
	}
}

func TestAccess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	side := serveProgram(t, "--socket-mode", "0666", "--allow-uid", "1001", "--admin-uid", "1002")
	program := forEverybody(t, side)
	as := func(uid uint32, args ...string) result {
		p := launchAs(t, uid, program, append(args, "--socket", side.socket)...)
		p.wait()
		return result{p.out.String(), p.err.String(), p.code}
	}
	hold(t, dial(t, side), "a") // the sidecar's own user may always
	if got := as(1001, "list"); got.code != 0 {
		t.Errorf("allowed: %+v", got)
	}
	if got := as(1003, "list"); got.code != exitFailure || !strings.Contains(got.err, "1003") {
		t.Errorf("not allowed: %+v", got)
	}
	if got := as(1001, "release", "--force", "a"); got.code != exitFailure || !strings.Contains(got.err, "admin") {
		t.Errorf("no admin: %+v", got)
	}
	if got := as(1002, "release", "--force", "a", "--grace", "0s"); got.code != 0 {
		t.Errorf("admin: %+v", got)
	}
}

// forEverybody lets all users reach a sidecar's socket, and gives a copy of the program beside it.
func forEverybody(t *testing.T, side *sidecarProgram) string {
	t.Helper()
	if err := os.Chmod(filepath.Dir(side.socket), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(side.socket), "locksidecar")
	text, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHealthServerOnABadAddress(t *testing.T) {
	if _, err := newHealthServer(t.Context(), "nowhere", http.NotFoundHandler(), nil); err == nil || !strings.Contains(err.Error(), "--http-addr") {
		t.Errorf("error %v", err)
	}
}

func TestSettingsOfTheStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("p@ss\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := storeFlags{url: "mysql://u@h/db", passwordFile: file}
	if got, err := s.resolve(); err != nil || got != "mysql://u@h/db?migrate=false&password-file="+url.QueryEscape(file) {
		t.Errorf("got %q, %v", got, err)
	}
	s.url = "embedded:"
	if _, err := s.resolve(); err == nil || !strings.Contains(err.Error(), "--store-password-file") {
		t.Errorf("a password for a store that takes none: %v", err)
	}
}

// The program knows no store by name: what there is to say about one says backends.
func TestKnowsNoStore(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`(?i)redis|mysql|mariadb|postgres|zookeeper|etcd|\bzks?\b|embedded|sentinel`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if name.MatchString(line) {
				t.Errorf("%s:%d: %s", file, i+1, line)
			}
		}
	}
}

func TestSchema(t *testing.T) {
	got := cli(t, "schema", "mysql", "--prefix", "app_")
	if got.code != 0 || !strings.Contains(got.out, "CREATE TABLE IF NOT EXISTS `app_lock`") {
		t.Errorf("status %d, stderr %q, stdout %q", got.code, got.err, got.out)
	}
	for _, args := range [][]string{{"redis"}, {}, {"mysql", "--prefix", "a`b"}, {"mysql", "--strategy", "other"}} {
		if got := cli(t, append([]string{"schema"}, args...)...); got.code != exitUsage || got.out != "" {
			t.Errorf("%v: status %d, stdout %q", args, got.code, got.out)
		}
	}
}
