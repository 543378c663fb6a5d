package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

// exitNoLeader is the status of leader when nobody leads.
const exitNoLeader = exitFailure

func newLeader(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leader NAME",
		Short: "Show who leads",
		Long: `Leader shows who leads NAME, since when, with which fencing token, and what the leader
publishes (lead --publish). When nobody leads it says so, with exit status 1.

With --watch it goes on with a line for each change, until it is stopped. When the sidecar
ends, it waits for the next one, and shows again who leads.
With -o json it prints one Leader of the API, or one a line.`,
		Example: `  locksidecar leader scheduler
  locksidecar leader primary -o json | jq -r .value
  locksidecar leader primary --watch --interval 200ms`,
		Args: argsBetween(1, 1, "one NAME"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.ValidArgsFunction = completeResources(f.socket)
	watch := cmd.Flags().Bool("watch", false, "go on, and show each change")
	interval := cmd.Flags().Duration("interval", time.Second, "how often --watch looks, 100ms to 1m")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interval < minInterval || *interval > maxInterval {
			return usage("--interval is %s: must be 100ms to 1m", *interval)
		}
		if !*watch {
			return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
				l, err := c.Leader(ctx, args[0])
				switch {
				case err != nil:
					return err
				case asJSON:
					err = writeJSON(io.out, l)
				default:
					err = writeLeader(io.out, l)
				}
				if err == nil && !l.GetLeads() {
					return &exitError{code: exitNoLeader}
				}
				return err
			})
		}
		return f.watch(cmd, *interval, func(ctx context.Context, c *client.Client, asJSON bool, seen func()) error {
			for l, err := range c.WatchLeader(ctx, args[0], *interval) {
				switch {
				case err != nil:
					return err
				case asJSON:
					err = writeJSONLine(io.out, l)
				default:
					_, err = fmt.Fprintln(io.out, leaderLine(l, time.Now()))
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

// writeLeader is all that is known of a leader.
func writeLeader(w io.Writer, l *pb.Leader) error {
	h := l.GetHolder()
	if !l.GetLeads() {
		_, err := fmt.Fprintf(w, "nobody leads %s\n", printable(l.GetResource()))
		return err
	}
	t := newTable(w)
	row(t, "leader of:", printable(l.GetResource()))
	row(t, "publishes:", orDash(printable(l.GetValue())))
	row(t, "is:", who(h))
	row(t, "sidecar:", orDash(printable(h.GetSidecar())))
	row(t, "since:", h.GetSince().AsTime().Local().Format(timeFormat)+", for "+age(h.GetAge().AsDuration()))
	row(t, "fence:", fenceCell(h.GetFence()))
	row(t, "candidates:", fmt.Sprint(l.GetCandidates()))
	return t.Flush()
}

// leaderLine is one change.
func leaderLine(l *pb.Leader, now time.Time) string {
	line := now.Format(time.TimeOnly) + " " + printable(l.GetResource())
	if !l.GetLeads() {
		return line + ": nobody leads"
	}
	h := l.GetHolder()
	return fmt.Sprintf("%s: %s leads at %s, publishes %s, fence %s", line, who(h), orDash(printable(h.GetSidecar())), orDash(printable(l.GetValue())), fenceCell(h.GetFence()))
}
