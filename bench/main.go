// The benchmark measures locksidecar beside other ways to a lock in the same
// stores, each store in one run of one server, and compares it with the targets
// that the project has set itself. See docs/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `The benchmark of locksidecar. It builds the sidecar, starts the stores, and
prints tables; progress goes to standard error. A target that is missed is no error.

  go run . [FLAGS]
  go run . compare -base COMMIT [FLAGS]

Flags:
`

// options are what a run can be told.
type options struct {
	out    string   // JSON file
	doc    string   // Markdown file
	only   []string // parts
	stores []string // keys of plans
	quick  bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command does what the arguments say: the run, or one of the processes that
// the run starts beside itself.
func command(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "echo":
		return serveEcho(ctx, args[1])
	case len(args) > 0 && args[0] == "compare":
		return compare(ctx, args[1:])
	case len(args) == 3 && args[0] == "hold":
		return holdForever(ctx, args[1], args[2])
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	r, err := run(ctx, o)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(os.Stdout, r.Text()); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if err := r.WriteJSON(o.out); err != nil {
		return err
	}
	fmt.Printf("\nas JSON: %s\n", o.out)
	if o.doc != "" {
		return r.WriteDoc(o.doc)
	}
	return nil
}

func parse(args []string) (options, error) {
	var o options
	var only, stores string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.Usage = func() {
		_, _ = io.WriteString(f.Output(), usage) // if this fails, nobody reads it
		f.PrintDefaults()
	}
	f.StringVar(&o.out, "o", "results/"+time.Now().Format("2006-01-02T15-04-05")+".json", "write the results to this `file`, as JSON")
	f.StringVar(&o.doc, "doc", "", "put the table into this Markdown `file`, between its marks")
	f.StringVar(&only, "only", "", "run only these `parts`, separated by commas: "+strings.Join(partNames(), ", "))
	f.StringVar(&stores, "stores", "", "run on these `stores`, separated by commas: some of "+strings.Join(storeKeys(), ", ")+" (default "+strings.Join(usual, ",")+")")
	f.BoolVar(&o.quick, "quick", false, "a short run with rough numbers, to see that everything works")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if o.only, err = some("part", only, partNames(), partNames()); err != nil {
		return o, err
	}
	o.stores, err = some("store", stores, usual, storeKeys())
	return o, err
}

// some is what a flag chooses of all there is; an empty one chooses the usual.
func some(what, chosen string, usual, all []string) ([]string, error) {
	if chosen == "" {
		return usual, nil
	}
	names := strings.Split(chosen, ",")
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no %s %q: give some of %s", what, name, strings.Join(all, ", "))
		}
	}
	return names, nil
}

var parts = []struct {
	name string
	run  func(*section, context.Context) error
}{
	{"pairs", (*section).pairs},
	{"hot", (*section).hot},
	{"contenders", (*section).contenders},
	{"kill", (*section).kill},
	{"lead", (*section).lead},
	{"idle", (*section).idle},
	{"sessions", (*section).sessions},
	{"scale", (*section).scale},
}

func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}
