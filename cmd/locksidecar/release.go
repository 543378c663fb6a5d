package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

const (
	defaultGrace = 2 * time.Second
	maxGrace     = time.Minute // that a sidecar takes
)

func newRelease(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release --force RESOURCE [LOCK_ID]",
		Short: "Take a lock from its holder",
		Long: `Release takes a lock from its holder, and tells the holder that the lock is lost.
Or it takes a waiter out of the queue. Without a LOCK_ID all holders lose it; list and get show
the ids. Others are granted when the holder has let go, or when the grace is over.

Only admins may do it: root and the sidecar's own user, or those of
serve --admin-uid and --admin-unit. Holders do not need this command, because they release their
own locks by ending their session. --force says that you know this.

With -o json it prints one ForceReleaseResponse of the API.`,
		Example: `  # let the holder stop its work for up to 2 seconds
  locksidecar release --force orders/42

  # the holder is known to be dead: at once
  locksidecar release --force orders/42 --grace 0s

  # this one waiter or reader only
  locksidecar release --force orders/42 5f0c6a3e9b1d4c7f8a2b3c4d5e6f7081`,
		Args: argsBetween(1, 2, "one RESOURCE, and a LOCK_ID if only one holder or waiter is meant"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.ValidArgsFunction = completeResources(f.socket)
	force := cmd.Flags().Bool("force", false, "needed: the holder may be working under the lock")
	grace := cmd.Flags().Duration("grace", defaultGrace, "how long the holder may take to stop before others are granted, 0s to 1m")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*force {
			return usage("this takes a lock from somebody who may be working under it: if that is meant, add --force")
		}
		if *grace < 0 || *grace > maxGrace {
			return usage("--grace is %s: must be 0s to 1m", *grace)
		}
		resource, id := args[0], ""
		if len(args) > 1 {
			id = args[1]
		}
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			ids, err := c.ForceRelease(ctx, resource, id, *grace)
			switch {
			case errors.Is(err, client.ErrNotHolder) && id != "":
				return fmt.Errorf("nobody of the id %s holds or waits for %q; see: locksidecar get %s", id, resource, shellQuote(resource))
			case err != nil:
				return err
			case len(ids) == 0:
				return fmt.Errorf("nobody holds %q", resource)
			case asJSON:
				return writeJSON(io.out, &pb.ForceReleaseResponse{LockIds: ids})
			}
			for _, id := range ids {
				if _, err := fmt.Fprintf(io.out, "%s: taken from %s\n", printable(resource), id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}
