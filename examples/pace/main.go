// Pace measures what a lock takes in each client: pairs of acquire and release, one caller, one
// sidecar on the embedded store. The clients take turns, so that what else the machine does
// meets all of them; the ratio is that to Go's in the same round.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/examples/stage"
)

func main() {
	rounds := flag.Int("rounds", 9, "how many times each client has its turn")
	pairs := flag.Int("pairs", 3000, "pairs of a turn")
	flag.Parse()
	if err := run(context.Background(), *rounds, *pairs); err != nil {
		fmt.Fprintln(os.Stderr, "pace:", err)
		os.Exit(1)
	}
}

// contender is a client. It gives the time of one pair.
type contender struct {
	name string
	turn func(ctx context.Context, socket string, pairs int) (time.Duration, error)
}

func contenders() []contender {
	all := []contender{{"Go", goPairs}}
	for _, c := range []struct{ name, program, file, kind string }{
		{"Python, threads", "python3", "pairs.py", "threads"},
		{"Python, asyncio", "python3", "pairs.py", "asyncio"},
		{"Node.js", "node", "pairs.js", ""},
	} {
		all = append(all, contender{c.name, func(ctx context.Context, socket string, pairs int) (time.Duration, error) {
			return program(ctx, c.program, "examples/pace/"+c.file, socket, strconv.Itoa(pairs), c.kind)
		}})
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
	all := contenders()
	took, ratios := make([][]float64, len(all)), make([][]float64, len(all))
	for range rounds {
		for i, c := range all {
			d, err := c.turn(ctx, s.Socket("s"), pairs)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			took[i] = append(took[i], float64(d.Nanoseconds())/1e3)
			ratios[i] = append(ratios[i], took[i][len(took[i])-1]/took[0][len(took[i])-1])
		}
	}
	fmt.Printf("%-18s %12s %12s\n", "", "µs a pair", "to Go's")
	for i, c := range all {
		fmt.Printf("%-18s %12.1f %12.2f\n", c.name, median(took[i]), median(ratios[i]))
	}
	return nil
}

func median[T cmp.Ordered](of []T) T {
	slices.Sort(of)
	return of[len(of)/2]
}

func goPairs(ctx context.Context, socket string, pairs int) (time.Duration, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "pace"})
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Close() }()
	var began time.Time
	for i := range pairs + pairs/10 {
		if i == pairs/10 { // warm
			began = time.Now()
		}
		l, err := s.Acquire(ctx, "pace", client.AcquireOptions{})
		if err != nil {
			return 0, err
		}
		if err := l.Release(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(began) / time.Duration(pairs), nil
}

// program runs one that prints the nanoseconds of a pair.
func program(ctx context.Context, name string, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // our own programs
	cmd.Env = append(os.Environ(), "PYTHONPATH=examples/python/src", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", name, err)
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return time.Duration(ns), err
}
