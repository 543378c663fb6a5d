package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

const (
	// completionLimit bounds how long a shell waits for names.
	completionLimit = time.Second
	// completionNames is more than a person reads.
	completionNames = 200
)

func newList(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List locks that are held or waited for",
		Long: `List shows every resource in the store that is held or waited for, through
whatever sidecar: one line for each holder, and one for each waiter in the order
in which they will be served.

` + missingHelp + `

With -o json it prints one ListLocksResponse of the API.`,
		Example: `  locksidecar list
  locksidecar list orders/
  locksidecar list -o json | jq -r '.locks[].resource'`,
		Args: argsBetween(0, 1, "at most one PREFIX"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.ValidArgsFunction = completeResources(f.socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			a := &pb.ListLocksResponse{}
			for l, err := range c.List(ctx, prefix) {
				if err = lacking(err, &a.MissingShards); err != nil {
					return err
				}
				if l != nil {
					a.Locks = append(a.Locks, l)
				}
			}
			write := func() error { return writeLocks(io.out, a.GetLocks()) }
			if asJSON {
				write = func() error { return writeJSON(io.out, a) }
			}
			return allBut(a.GetMissingShards(), write())
		})
	}
	return cmd
}
