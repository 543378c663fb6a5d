package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/client"
)

func newInfo(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the state of the sidecar",
		Long: `Info shows the sidecar's version, its store, whether locks can be granted and
why not, its lease in the store, and how many sessions, holds and waiters it has.

With -o json it prints one Info of the API.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := addClient(cmd, io)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			info, err := c.Info(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(io.out, info)
			}
			return writeInfo(io.out, info, c.Socket())
		})
	}
	return cmd
}
