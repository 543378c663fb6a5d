// Pace measures what a lock takes in each client: pairs of acquire and release, one caller, one
// sidecar on the embedded store. Below each client stands the same by hand: the two requests put
// together as text, sent and read with the plainest code that the language has. Below that is its
// floor: two lines that a bare socket of the same language sends, and gets back from a process that
// does nothing else.
//
// All take turns, so that what else the machine does meets all of them; ratios are those of the
// same round. Each turn is a process of its own, which tells the median of a pair and what
// processor time it used for one. The sidecar's is not in that.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/examples/stage"
)

func main() {
	rounds := flag.Int("rounds", 9, "how many times each client has its turn")
	pairs := flag.Int("pairs", 3000, "pairs of a turn, after half as many that warm it, and in Java ten times as many")
	act := flag.String("act", "", "what this process does at a socket: echo, go, hand, or floor; empty: it runs the others")
	flag.Parse()
	var err error
	if *act == "" {
		err = run(context.Background(), *rounds, *pairs)
	} else {
		err = do(context.Background(), *act, flag.Arg(0), *pairs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pace:", err)
		os.Exit(1)
	}
}

// figures are those of a turn: the median of a pair, and the processor time of one, in µs.
type figures struct{ took, used float64 }

// do is what a process does that another pace has started.
func do(ctx context.Context, act, socket string, pairs int) error {
	turns := map[string]func(context.Context, string, int) (figures, error){"go": goPairs, "hand": goHand, "floor": goFloor}
	if act == "echo" {
		return echo(ctx, socket)
	}
	f, err := turns[act](ctx, socket, pairs)
	if err == nil {
		fmt.Println(f.took, f.used)
	}
	return err
}

// contender is a client, a pair by hand, or the floor of its language.
type contender struct {
	name  string
	floor bool     // it talks to the echo
	argv  []string // with the socket and the number of pairs, it prints the figures
}

// rows is how many contenders each language has.
const rows = 3

func contenders(self, classes string, pairs int) []contender {
	var all []contender
	for _, c := range []struct {
		name string
		argv []string
	}{
		{"Go", nil},
		{"Python, threads", []string{"python3", "examples/pace/pairs.py", "threads"}},
		{"Python, asyncio", []string{"python3", "examples/pace/pairs.py", "asyncio"}},
		{"Node.js", []string{"node", "examples/pace/pairs.js", "client"}},
		{"Java", []string{"java", "-cp", classes, "Pairs", "client"}},
	} {
		with := func(what string) []string {
			if c.argv == nil {
				return []string{self, "-pairs", strconv.Itoa(pairs), "-act", cmp.Or(what, "go")}
			}
			argv := slices.Clone(c.argv)
			if what != "" {
				argv[len(argv)-1] += "-" + what
			}
			return argv
		}
		all = append(all, contender{c.name, false, with("")}, contender{c.name + ", by hand", false, with("hand")},
			contender{c.name + ", floor", true, with("floor")})
	}
	return all
}

func run(ctx context.Context, rounds, pairs int) error {
	s, err := stage.Open(ctx, "embedded:", "pace")
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	sidecar, err := s.Sidecar("s")
	if err != nil {
		return err
	}
	defer sidecar.Kill()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pace")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := compileJava(ctx, dir); err != nil {
		return err
	}
	bare := filepath.Join(dir, "echo")
	stop, err := startEcho(ctx, self, bare)
	if err != nil {
		return err
	}
	defer stop()
	all := contenders(self, dir, pairs)
	turns := make([][]figures, len(all))
	for range rounds {
		for i, c := range all {
			socket := s.Socket("s")
			if c.floor {
				socket = bare
			}
			f, err := c.turn(ctx, socket, pairs)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			turns[i] = append(turns[i], f)
		}
	}
	show(all, turns)
	return nil
}

// show prints medians of the rounds.
func show(all []contender, turns [][]figures) {
	middle := func(i int, of func(round int) float64) float64 {
		values := make([]float64, len(turns[i]))
		for round := range values {
			values[round] = of(round)
		}
		return median(values)
	}
	fmt.Printf("%-26s %10s %8s %10s | %12s %8s %10s\n", "", "µs a pair", "to Go's", "to floor's", "processor µs", "to Go's", "to floor's")
	for i, c := range all {
		floor := i/rows*rows + rows - 1 // of its language
		took := func(j int) func(int) float64 { return func(r int) float64 { return turns[j][r].took } }
		used := func(j int) func(int) float64 { return func(r int) float64 { return turns[j][r].used } }
		ratio := func(a, b func(int) float64) float64 { return middle(i, func(r int) float64 { return a(r) / b(r) }) }
		fmt.Printf("%-26s %10.1f %8.2f %10.2f | %12.1f %8.2f %10.2f\n", c.name, middle(i, took(i)), ratio(took(i), took(0)), ratio(took(i), took(floor)),
			middle(i, used(i)), ratio(used(i), used(0)), ratio(used(i), used(floor)))
	}
}

func median[T cmp.Ordered](of []T) T {
	slices.Sort(of)
	return of[len(of)/2]
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it cannot be
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func goPairs(ctx context.Context, socket string, pairs int) (figures, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return figures{}, err
	}
	defer func() { _ = c.Close() }()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "pace"})
	if err != nil {
		return figures{}, err
	}
	defer func() { _ = s.Close() }()
	return measure(pairs, func() error {
		l, err := s.Acquire(ctx, "pace", client.AcquireOptions{})
		if err != nil {
			return err
		}
		return l.Release(ctx)
	})
}

// turn runs a program that prints its figures.
func (c contender) turn(ctx context.Context, socket string, pairs int) (figures, error) {
	argv := append(slices.Clone(c.argv), socket, strconv.Itoa(pairs))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // our own programs
	cmd.Env = append(os.Environ(), "PYTHONPATH=examples/python/src", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return figures{}, fmt.Errorf("run %s: %w", argv[0], err)
	}
	var f figures
	_, err = fmt.Sscan(string(out), &f.took, &f.used)
	return f, err
}

// compileJava compiles the client, which needs nothing else, and Pairs.
func compileJava(ctx context.Context, dir string) error {
	sources, err := filepath.Glob("examples/java/locksidecar-client/src/main/java/io/github/locksidecar/*.java")
	if err != nil {
		return err
	}
	args := []string{"-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-nowarn", "-d", dir, "examples/pace/Pairs.java"} // it ends soon
	cmd := exec.CommandContext(ctx, "javac", append(args, sources...)...)                                                 //nolint:gosec // our own programs
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the client for Java: %w\n%s", err, out)
	}
	return nil
}

// startEcho starts the process behind the floors.
func startEcho(ctx context.Context, self, socket string) (stop func(), err error) {
	cmd := exec.CommandContext(ctx, self, "-act", "echo", socket) //nolint:gosec // this program
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil || time.Now().After(end) {
			return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, err
		}
	}
}
