// The program show runs some of the examples for a person: `make examples`. It
// starts the Redis and the MySQL that they need, and ends them afterwards.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	s := &show{out: os.Stdout, began: time.Now()}
	err := s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nexamples: %v\n", err)
		os.Exit(1)
	}
}

type show struct {
	out    io.Writer
	began  time.Time
	binary string
}

// act is a program that is shown.
type act struct {
	title string
	about string
	dir   string
	env   []string
	argv  []string
	// fails: its status is not 0, for that is the point.
	fails bool
}

func (s *show) run(ctx context.Context) (err error) {
	if s.binary, err = filepath.Abs("bin/locksidecar"); err != nil {
		return err
	}
	if _, err := os.Stat(s.binary); err != nil {
		return fmt.Errorf("%w: run it with `make examples`, in the root of the repository", err)
	}
	for program, install := range map[string]string{"python3": "python3", "mvn": "maven", "java": "default-jdk-headless"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: to install it: apt-get install --no-install-recommends %s", err, install)
		}
	}
	s.say("building the Java example (the first time, Maven downloads what it needs)")
	if err := s.quietly(ctx, "examples/java", "mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "package", "-DskipTests"); err != nil {
		return err
	}
	s.say("building the trade and the cron example")
	if err := s.quietly(ctx, ".", "go", "build", "-o", "bin/", "./examples/trade", "./examples/cron"); err != nil {
		return err
	}
	redis, closeRedis, err := s.start(ctx, testengine.Redis)
	redis += "?restart-grace=0s" // it is new
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeRedis()) }()
	mysql, closeMySQL, err := s.start(ctx, testengine.MySQL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeMySQL()) }()

	for _, a := range []act{{
		title: "Python: two shops sell one stock",
		about: "Processes of two services sell units of one stock, first without the lock and\n" +
			"then with it. A unit that is sold twice is one that cannot be delivered.",
		dir:  "examples/python",
		env:  []string{"PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1", "LOCKSIDECAR_TEST_REDIS=" + redis},
		argv: []string{"python3", "scenarios/inventory.py"},
	}, {
		title: "Java: loans on MySQL, every commit guarded",
		about: "Transfers of a loan's debts run side by side, never beside its repayment. One\n" +
			"process is frozen in a repayment, with its sidecar and for longer than its lease,\n" +
			"and others take over. When it wakes up it must roll back. Some seconds.",
		argv: []string{"java", "-jar", "examples/java/scenarios/target/scenarios.jar", mysql},
	}, {
		title: "The same without the guard",
		about: "The process that slept commits what others have done meanwhile. The audit finds it.",
		argv:  []string{"java", "-jar", "examples/java/scenarios/target/scenarios.jar", "--unguarded", mysql},
		fails: true,
	}, {
		title: "Go: 1,000 withdrawals, each paid once",
		about: "Three processes are asked for each withdrawal, all three of them. The payment gateway\n" +
			"does not always answer, and pays as often as it is asked to. Processes and sidecars are\n" +
			"killed. A compensation job repeats what is not done. A minute or less.",
		argv: []string{"bin/trade", "--store", mysql},
	}, {
		title: "Shell: the same line of cron on four nodes",
		about: "The job takes a millisecond, and the nodes' clocks differ by more than that. One job\n" +
			"hangs, one fails, and one node is killed at work. Half a minute or less.",
		argv: []string{"bin/cron", "--store", redis},
	}} {
		if err := s.perform(ctx, a); err != nil {
			return err
		}
	}
	s.say("all as it should be")
	return nil
}

// start starts a store of the show's own.
func (s *show) start(ctx context.Context, k *testengine.Kind) (url string, end func() error, err error) {
	server, err := testengine.Start(ctx, k)
	if err != nil {
		return "", nil, err
	}
	s.say("%s: %s", k, server.Origin())
	return server.URL(), server.Close, nil
}

// perform runs a program before the eyes of the person.
func (s *show) perform(ctx context.Context, a act) error {
	fmt.Fprintf(s.out, "\n%s\n%s\n%s\n\n", a.title, strings.Repeat("=", len(a.title)), a.about)
	began := time.Now()
	cmd := s.command(ctx, a.dir, a.argv)
	cmd.Env = append(cmd.Env, a.env...)
	cmd.Stdout, cmd.Stderr = &indented{w: s.out}, &indented{w: os.Stderr}
	err := cmd.Run()
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case err != nil && !errors.As(err, &status):
		return fmt.Errorf("run %s: %w", a.argv[0], err)
	case (err != nil) != a.fails:
		return fmt.Errorf("%q ended with %s", a.title, cmd.ProcessState)
	}
	fmt.Fprintf(s.out, "\n(%s)\n", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// quietly runs a program whose output is only of interest when it fails.
func (s *show) quietly(ctx context.Context, dir string, argv ...string) error {
	if out, err := s.command(ctx, dir, argv).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return nil
}

func (s *show) command(ctx context.Context, dir string, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the programs are named above
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LOCKSIDECAR_BINARY="+s.binary)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// say tells how far it is.
func (s *show) say(format string, args ...any) {
	fmt.Fprintf(s.out, "[%5.1fs] %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// indented writes lines behind a margin.
type indented struct {
	w      io.Writer
	inLine bool
}

func (i *indented) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		margin := "    "
		if i.inLine {
			margin = ""
		}
		if _, err := io.WriteString(i.w, margin+line); err != nil {
			return 0, err
		}
		i.inLine = !strings.HasSuffix(line, "\n")
	}
	return len(p), nil
}
