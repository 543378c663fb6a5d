package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

// What a sidecar takes as the interval of a watch.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Minute
)

func newWatch(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Show locks as they change",
		Long: `Watch shows what is held and waited for, and then a line for every change, until
it is stopped. When the sidecar ends, watch waits for the next one, and shows again what
is there. The sidecar looks at the store once an interval, so a lock that
comes and goes between two looks is not seen.

While shards of the store do not answer, what they have stays as it was seen last. They
are named on stderr, in JSON by an event of the kind MISSING.

With -o json every line is a WatchEvent of the API.`,
		Example: `  locksidecar watch
  locksidecar watch orders/ --interval 200ms
  locksidecar watch -o json | jq -c 'select(.kind == "FREE") | .lock.resource'`,
		Args: argsBetween(0, 1, "at most one PREFIX"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.ValidArgsFunction = completeResources(f.socket)
	interval := cmd.Flags().Duration("interval", time.Second, "how often to look, 100ms to 1m")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interval < minInterval || *interval > maxInterval {
			return usage("--interval is %s: must be 100ms to 1m", *interval)
		}
		return f.watch(cmd, *interval, func(ctx context.Context, c *client.Client, asJSON bool, seen func()) error {
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
				case e.GetKind() == pb.WatchEvent_MISSING:
					err = writeMissing(io.err, cmd.CommandPath(), e.GetMissingShards())
				case e.GetKind() != pb.WatchEvent_SYNCED: // no news to people
					err = writeWatch(io.out, e, time.Now())
				}
				if err != nil {
					return &exitError{code: exitFailure, err: err}
				}
				seen()
			}
			return nil
		})
	}
	return cmd
}

// watch calls show until it is stopped, and again an interval after an error such as the end of the
// sidecar. Where nothing was ever seen, the first error is the last.
func (c *clientFlags) watch(cmd *cobra.Command, interval time.Duration, show func(_ context.Context, _ *client.Client, asJSON bool, seen func()) error) error {
	ctx, stop := untilSignal(cmd.Context(), func(os.Signal) {})
	defer stop()
	said, seen := "", false
	for {
		err := c.ask(ctx, func(ctx context.Context, to *client.Client, asJSON bool) error {
			return show(ctx, to, asJSON, func() { said, seen = "", true })
		})
		var exit *exitError
		switch {
		case ctx.Err() != nil: // stopped, as it must be in the end
			return nil
		case err == nil, !seen, errors.As(err, &exit), errors.Is(err, client.ErrPermissionDenied):
			return err
		case err.Error() != said:
			said = err.Error()
			_, _ = fmt.Fprintf(c.io.err, "%s: %s; trying again\n", cmd.CommandPath(), fit(said))
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
		}
	}
}
