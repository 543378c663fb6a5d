// Command locksidecar is a distributed-lock sidecar, and what people and
// scripts use to talk to one. See locksidecar --help.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/locksidecar/locksidecar/internal/supervise"
)

// streams are where a command reads and writes.
type streams struct {
	out, err io.Writer
}

func main() {
	if supervise.RunWatchdog() {
		return
	}
	os.Exit(execute(context.Background(), os.Args[1:], streams{out: os.Stdout, err: os.Stderr}))
}

// execute runs one command line and returns the exit status.
func execute(ctx context.Context, args []string, io streams) int {
	root := newRoot(io) //nolint:contextcheck // cobra gives the commands their context
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	code, message := outcome(cmd, err)
	if message != "" {
		_, _ = fmt.Fprintln(io.err, message) // if this fails too, there is nobody to tell
	}
	return code
}
