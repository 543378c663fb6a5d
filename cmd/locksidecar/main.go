// Command locksidecar is a distributed-lock sidecar. It is also the command with which
// people and scripts talk to a sidecar. See locksidecar --help.
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
	front    *supervise.Front // not nil: this process is the supervisor of a run
	args     []string         // the command line, for the supervisor
}

func main() {
	front, args, err := supervise.Supervised(os.Args)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "locksidecar:", err)
		os.Exit(exitOwnFailure)
	}
	io := streams{out: os.Stdout, err: os.Stderr, front: front, args: args}
	if front != nil {
		io.err = front // the terminal is the front's
	}
	code := execute(context.Background(), args, io)
	if front != nil {
		front.Ended(code)
	}
	os.Exit(code)
}

// execute runs one command line and returns the exit status.
func execute(ctx context.Context, args []string, io streams) int {
	root := rootOf(io, args) //nolint:contextcheck // cobra gives the commands their context
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	code, message := outcome(cmd, err)
	if message != "" {
		_, _ = fmt.Fprintln(io.err, message) // if this fails too, there is nobody to tell
	}
	return code
}
