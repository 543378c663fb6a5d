package docstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// patience is for everything that must happen, however busy the machine is.
const patience = 2 * time.Minute

// place is an empty directory with a sidecar on the embedded store.
type place struct {
	dir    string
	socket string
	env    []string
}

// newPlace starts a sidecar, which ends with the test, and waits until it is ready.
func newPlace(t *testing.T) place {
	t.Helper()
	p := place{dir: t.TempDir(), socket: filepath.Join(shortDir(t), "s")}
	python, err := filepath.Abs(root + "/examples/python/src")
	if err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.Abs(root + "/examples/shell")
	if err != nil {
		t.Fatal(err)
	}
	p.env = []string{
		"PATH=" + bin + ":" + shell + ":" + os.Getenv("PATH"), "HOME=" + p.dir, "LOCKSIDECAR_SOCKET=" + p.socket,
		"PYTHONPATH=" + python, "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8",
	}
	serve := exec.Command(filepath.Join(bin, "locksidecar"), "serve", "--name", "node-1", "--drain", "0s", "--lost-grace", "1ms")
	serve.Env = p.env
	serve.Dir = p.dir
	var log bytes.Buffer
	serve.Stderr = &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		if err := serve.Wait(); err != nil && !t.Failed() {
			t.Errorf("the sidecar: %v\n%s", err, log.Bytes())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		health := exec.CommandContext(ctx, filepath.Join(bin, "locksidecar"), "health")
		health.Env = p.env
		if health.Run() == nil {
			return p
		}
		if ctx.Err() != nil {
			t.Fatal("the sidecar does not get ready")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// shortDir is a directory whose path leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "docs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// run runs a program there and gives what it wrote to stdout. All that it has
// started ends with it.
func (p place) run(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if path := filepath.Join(bin, argv[0]); exists(path) {
		cmd.Path = path
	}
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := os.Create(filepath.Join(p.dir, ".out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr = out, out // a file: what is left behind need not be waited for
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	said, readErr := os.ReadFile(out.Name())
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(said), err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// script is a chain of shell blocks that share one shell.
func script(bs []block) (name, text string) {
	var s strings.Builder
	for _, b := range bs {
		s.WriteString(b.text)
	}
	return fmt.Sprintf("%s:%d", b0(bs).page, b0(bs).line), s.String()
}

func b0(bs []block) block { return bs[0] }

// Each shell block runs and ends by itself.
func TestShell(t *testing.T) {
	all := pages(t)
	for _, page := range sorted(all) {
		var chains [][]block
		for _, b := range blocks(t, page, all[page]) {
			verb, _ := b.how(t)
			switch {
			case b.language != "sh" || verb == "not run":
			case verb == "continued" && len(chains) > 0:
				chains[len(chains)-1] = append(chains[len(chains)-1], b)
			case verb == "continued":
				t.Errorf("%s:%d: no block before it is run", page, b.line)
			case verb == "compiled":
				if out, err := (place{dir: t.TempDir(), env: os.Environ()}).run(t, "bash", "-n", "-c", b.text); err != nil {
					t.Errorf("%s:%d: %v\n%s", page, b.line, err, out)
				}
			default:
				chains = append(chains, []block{b})
			}
		}
		for _, chain := range chains {
			name, text := script(chain)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out, err := newPlace(t).run(t, "bash", "-eu", "-o", "pipefail", "-c", text)
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				var missing []string
				for line := range strings.Lines(text) {
					if want, ok := shown(line); ok && !strings.Contains(out, want) {
						missing = append(missing, want)
					}
				}
				if len(missing) > 0 {
					t.Errorf("the page shows %q, but it writes\n%s", missing, out)
				}
			})
		}
	}
}

// shown is what must be in the output where a line of a block shows it: "# {"code":…"
// gives `{"code":`.
func shown(line string) (want string, ok bool) {
	line, ok = strings.CutPrefix(line, "# {")
	if !ok {
		return "", false
	}
	name, _, ok := strings.Cut(line, ":")
	return "{" + name + ":", ok
}

// Python: each block is compiled, and run unless it is a part of a program.
func TestPython(t *testing.T) {
	interpreter(t, "python3")
	each(t, "python", func(t *testing.T, b block, run bool) {
		p := place{dir: t.TempDir(), env: os.Environ()}
		if run {
			p = newPlace(t)
		}
		file := filepath.Join(p.dir, "sample.py")
		write(t, file, b.text)
		out, err := p.run(t, "python3", "-W", "error::SyntaxWarning", "-c", "compile(open('sample.py').read(), 'sample.py', 'exec')")
		if err == nil && run {
			out, err = p.run(t, "python3", "sample.py")
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// What MySQL's and PostgreSQL's pages show of the guard fails with LockLost where it
// changes no row, and passes where it changes one.
func TestGuardSamples(t *testing.T) {
	interpreter(t, "python3")
	prelude, err := os.ReadFile("testdata/guard.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"docs/stores/mysql.md", "docs/stores/postgres.md"} {
		found := 0
		for _, b := range blocks(t, page, pages(t)[page]) {
			if b.language != "python" {
				continue
			}
			found++
			for _, c := range []struct{ rows, last string }{{"1", "done"}, {"0", "locksidecar._errors.LockLost"}} {
				t.Run(fmt.Sprintf("%s:%d/%s", page, b.line, c.rows), func(t *testing.T) {
					t.Parallel()
					p := newPlace(t)
					write(t, filepath.Join(p.dir, "sample.py"), string(prelude)+b.text+"print('done')\n")
					out, _ := p.run(t, "python3", "sample.py", c.rows)
					lines := strings.Split(strings.TrimSpace(out), "\n")
					if !strings.HasPrefix(lines[len(lines)-1], c.last) {
						t.Errorf("with %s rows it ends with\n%s", c.rows, out)
					}
				})
			}
		}
		if found == 0 {
			t.Errorf("%s shows no guard in Python", page)
		}
	}
}

// Node.js: the same.
func TestNode(t *testing.T) {
	interpreter(t, "node")
	client, err := filepath.Abs(root + "/examples/node")
	if err != nil {
		t.Fatal(err)
	}
	each(t, "js", func(t *testing.T, b block, run bool) {
		p := place{dir: t.TempDir(), env: os.Environ()}
		if run {
			p = newPlace(t)
		}
		write(t, filepath.Join(p.dir, "sample.mjs"), b.text)
		if err := os.MkdirAll(filepath.Join(p.dir, "node_modules"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(client, filepath.Join(p.dir, "node_modules", "locksidecar")); err != nil {
			t.Fatal(err)
		}
		out, err := p.run(t, "node", "--check", "sample.mjs")
		if err == nil && run {
			out, err = p.run(t, "node", "sample.mjs")
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// PHP and Ruby: the same; their clients are one file each.
func TestPHP(t *testing.T)  { beside(t, "php", "examples/php/locksidecar.php", "php", "-l") }
func TestRuby(t *testing.T) { beside(t, "ruby", "examples/ruby/locksidecar.rb", "ruby", "-c") }

// beside runs or checks the blocks of a language beside the file that is its client.
func beside(t *testing.T, language, client string, check ...string) {
	t.Helper()
	interpreter(t, language)
	client, err := filepath.Abs(filepath.Join(root, client))
	if err != nil {
		t.Fatal(err)
	}
	each(t, language, func(t *testing.T, b block, run bool) {
		p := place{dir: t.TempDir(), env: os.Environ()}
		if run {
			p = newPlace(t)
		}
		if err := os.Symlink(client, filepath.Join(p.dir, filepath.Base(client))); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(p.dir, "sample"), b.text)
		out, err := p.run(t, append(check, "sample")...)
		if err == nil && run {
			out, err = p.run(t, language, "sample")
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// Go: each block is a whole file; programs are run.
func TestGo(t *testing.T) {
	each(t, "go", func(t *testing.T, b block, run bool) {
		dir := t.TempDir()
		file := filepath.Join(dir, "main.go")
		write(t, file, b.text)
		here, err := filepath.Abs(filepath.Join(root, "internal", "docstest", "sample", "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		overlay, err := json.Marshal(map[string]map[string]string{"Replace": {here: file}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "overlay.json"), string(overlay))
		build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "sample"), "./sample")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the program, with which it shares most packages
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !run {
			return
		}
		if out, err := newPlace(t).run(t, filepath.Join(dir, "sample")); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// YAML: each block is well formed, and has no key twice.
func TestYAML(t *testing.T) {
	each(t, "yaml", func(t *testing.T, b block, _ bool) {
		var anything any
		if err := yaml.Unmarshal([]byte(b.text), &anything); err != nil {
			t.Error(err)
		}
	})
}

// Java: each block stands in a source that Maven compiles with the client's tests.
func TestJava(t *testing.T) {
	var sources strings.Builder
	files, err := filepath.Glob(root + "/examples/java/locksidecar-client/src/test/java/io/github/locksidecar/*.java")
	if err != nil || len(files) == 0 {
		t.Fatal("no Java sources", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		sources.WriteString(squeeze(string(text)))
	}
	each(t, "java", func(t *testing.T, b block, _ bool) {
		if !strings.Contains(sources.String(), squeeze(b.text)) {
			t.Error("no source among the Java client's tests has these lines: put them into DocsTest.java")
		}
	})
}

// squeeze makes one space of what stands between words, and leaves the ends of comments out.
func squeeze(s string) string {
	var words []string
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "//")
		words = append(words, strings.Fields(line)...)
	}
	return strings.Join(words, " ")
}

// each calls f for each block of a language that is to be run or compiled.
func each(t *testing.T, language string, f func(t *testing.T, b block, run bool)) {
	t.Helper()
	all := pages(t)
	found := false
	for _, page := range sorted(all) {
		for _, b := range blocks(t, page, all[page]) {
			verb, _ := b.how(t)
			if b.language != language || verb == "not run" {
				continue
			}
			found = true
			t.Run(fmt.Sprintf("%s:%d", page, b.line), func(t *testing.T) {
				t.Parallel()
				f(t, b, verb == "")
			})
		}
	}
	if !found {
		t.Errorf("no page has a block of %s", language)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// interpreter fails the test where a program is missing.
func interpreter(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v; `make test-deps` gets it", err)
	}
}
