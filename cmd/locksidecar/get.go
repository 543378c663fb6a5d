package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/client"
)

func newGet(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get RESOURCE",
		Short: "Show who holds and who waits for one resource",
		Long: `Get shows who holds a resource, since when, with which fencing token, and who
waits for it. A free resource is no error.

With -o json it prints one Lock of the API.`,
		Example: `  locksidecar get orders/42
  locksidecar get orders/42 -o json | jq '.holders | length'`,
		Args: argsBetween(1, 1, "one RESOURCE"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.ValidArgsFunction = completeResources(f.socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			l, err := c.Get(ctx, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(io.out, l)
			}
			return writeLock(io.out, l, time.Now())
		})
	}
	return cmd
}
