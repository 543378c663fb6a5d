package examples

import (
	"strings"
	"testing"
	"time"
)

// 1,000 threads or tasks of one client hold 1,000 locks at the same time, in each language. The limit is in processor
// time of the program, to which it does not matter how busy the machine is. It takes 0.1 to 1.3 s; a client that looks at all
// its holds at each call, or wakes all its threads for each answer, takes 5 to 40.
func TestCrowd(t *testing.T) {
	t.Parallel()
	long(t)
	const most = 4 * time.Second
	for language, of := range map[string]struct {
		want  string
		start func(t *testing.T, env []string) *program
	}{
		"Python": {"1000 1000", func(t *testing.T, env []string) *program {
			return launch(t, append(env, pythonEnv...), python(t), "testdata/crowd.py")
		}},
		"Node": {"1000", func(t *testing.T, env []string) *program { return launch(t, env, "node", "testdata/crowd.js") }},
		"PHP":  {"1000", func(t *testing.T, env []string) *program { return launch(t, env, "php", "testdata/crowd.php") }},
		"Ruby": {"1000", func(t *testing.T, env []string) *program { return launch(t, env, "ruby", "testdata/crowd.rb") }},
		"Rust": {"1000", func(t *testing.T, env []string) *program { return launch(t, env, buildRust(t)["crowd example"]) }},
		"Java": {"1000", func(t *testing.T, env []string) *program {
			buildJava(t)
			return launch(t, env, "java", "-cp", javaJar, "io.github.locksidecar.scenarios.Crowd")
		}},
	} {
		t.Run(language, func(t *testing.T) {
			s := serve(t, "--ttl", "60s")
			p := of.start(t, s.env())
			code := p.wait()
			if got := strings.Join(strings.Fields(p.out.String()), " "); code != 0 || got != of.want {
				t.Fatalf("status %d, %s held, want %s\n%s", code, got, of.want, &p.err)
			}
			took := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
			t.Logf("%v of processor time", took)
			if took > most {
				t.Errorf("it took %v of processor time, want %v at most", took, most)
			}
		})
	}
}
