// Command release packs what a release consists of into dist/: archives and Debian
// packages of the program with their bills of materials, the image, the chart, the API, and
// the clients in the form that the registry of each language takes. `make release` calls it.
//
// It publishes nothing. The version of everything is that in the file VERSION.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// url is where the sources are.
const url = "https://github.com/locksidecar/locksidecar"

// maintainer is who packages name.
const maintainer = "The locksidecar authors"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one run.
type release struct {
	root     string // the repository
	out      string // dist/
	version  string // without v
	revision string
	created  time.Time // all times in packages
	signKey  string    // GnuPG key; empty: nothing is signed
	stage    string    // a folder that is removed at the end
}

// part is one kind of what is released.
type part struct {
	name string
	make func(*release, context.Context) error
}

// parts in the order in which they are made. The checksums come last.
var parts = []part{
	{"program", (*release).program},
	{"deb", (*release).deb},
	{"image", (*release).image},
	{"chart", (*release).chart},
	{"api", (*release).api},
	{"python", (*release).python},
	{"node", (*release).node},
	{"java", (*release).java},
	{"rust", (*release).rust},
	{"go", (*release).gomodule},
}

func run(ctx context.Context, args []string) (err error) {
	r := &release{created: time.Unix(0, 0)}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&r.root, "root", "../..", "the repository")
	f.StringVar(&r.out, "out", "", "folder for what is made (default: dist in the repository)")
	f.StringVar(&r.revision, "revision", "unknown", "revision of the source")
	f.Func("created", "seconds since 1970 that all times in packages show", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		r.created = time.Unix(n, 0).UTC()
		return err
	})
	f.StringVar(&r.signKey, "sign", "", "GnuPG key that signs the checksums, the chart and the Maven bundle")
	set := f.String("set-version", "", "write this version into VERSION and all that has a copy of it, and make nothing")
	if err := f.Parse(args); err != nil {
		return err
	}
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if *set != "" {
		return setVersion(r.root, *set)
	}
	if r.version, err = readVersion(r.root); err != nil {
		return err
	}
	wanted, err := chosen(f.Args())
	if err != nil {
		return err
	}
	if r.out == "" {
		r.out = filepath.Join(r.root, "dist")
	}
	if f.NArg() == 0 { // everything is made again: nothing of an older version stays
		if err := os.RemoveAll(r.out); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if r.stage, err = os.MkdirTemp("", "locksidecar-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.stage)
	for _, p := range wanted {
		fmt.Println("release:", p.name)
		if err := p.make(r, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return r.sums(ctx)
}

// chosen are the parts of these names, or all.
func chosen(names []string) ([]part, error) {
	if len(names) == 0 {
		return parts, nil
	}
	var found []part
	for _, n := range names {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == n })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q", n)
		}
		found = append(found, parts[i])
	}
	return found, nil
}

// file is the path of something in dist/.
func (r *release) file(format string, args ...any) string {
	return filepath.Join(r.out, fmt.Sprintf(format, args...))
}

// command runs a program in a folder, with what it prints on our stderr.
func (r *release) command(ctx context.Context, dir string, argv ...string) error {
	cmd := r.prepare(ctx, dir, argv...)
	cmd.Stdout = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

// output runs a program and returns what it prints.
func (r *release) output(ctx context.Context, dir string, argv ...string) ([]byte, error) {
	out, err := r.prepare(ctx, dir, argv...).Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	return out, nil
}

func (r *release) prepare(ctx context.Context, dir string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.created.Unix()))
	return cmd
}
