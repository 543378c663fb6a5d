package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

func newWatch(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Show locks as they change",
		Long: `Watch shows what is held and waited for, and then a line for every change, until
it is stopped. The sidecar looks at the store once an interval, so a lock that
comes and goes between two looks is not seen.

With -o json every line is a WatchEvent of the API.`,
		Example: `  locksidecar watch
  locksidecar watch orders/ --interval 200ms
  locksidecar watch -o json | jq -c 'select(.kind == "FREE") | .lock.resource'`,
		Args: argsBetween(0, 1, "at most one PREFIX"),
	}
	f := addClient(cmd)
	cmd.ValidArgsFunction = completeResources(f.socket)
	interval := cmd.Flags().Duration("interval", time.Second, "how often to look, 100ms to 1m")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := untilSignal(cmd.Context(), func(os.Signal) {})
		defer stop()
		err := f.ask(ctx, func(ctx context.Context, c *client.Client, asJSON bool) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			for e, err := range c.Watch(ctx, prefix, *interval) {
				switch {
				case err != nil:
					return err
				case asJSON:
					err = writeJSONLine(io.out, e)
				case e.GetKind() != pb.WatchEvent_SYNCED: // no news to people
					err = writeWatch(io.out, e, time.Now())
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if ctx.Err() != nil { // stopped, as it must be in the end
			return nil
		}
		return err
	}
	return cmd
}
