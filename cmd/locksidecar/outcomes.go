package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

func newOutcomes(io streams) *cobra.Command {
	var states, prefix string
	cmd := &cobra.Command{
		Use:   "outcomes",
		Short: "List what became of programs that are run once",
		Long: `Outcomes shows what is recorded in the store of everything that is done once:
by "locksidecar once", or by apps. UNKNOWN is what is being done, and what has
ended without saying how.

` + missingHelp + `

With -o json it prints one ListOutcomesResponse of the API.`,
		Example: `  # what has to be done again
  locksidecar outcomes --state failed,unknown --prefix withdrawals/

  # the same for a script
  locksidecar outcomes --state failed,unknown -o json | jq -r '.outcomes[].resource'`,
		Args: noArgs,
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.Flags().StringVar(&states, "state", "", "only these: succeeded, failed, unknown, with a comma between them")
	cmd.Flags().StringVar(&prefix, "prefix", "", "only keys that begin so")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		only, err := outcomeStates(states)
		if err != nil {
			return err
		}
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			a := &pb.ListOutcomesResponse{}
			for o, err := range c.Outcomes(ctx, prefix, only...) {
				if err = lacking(err, &a.MissingShards); err != nil {
					return err
				}
				if o != nil {
					a.Outcomes = append(a.Outcomes, o)
				}
			}
			write := func() error { return writeOutcomes(io.out, a.GetOutcomes()) }
			if asJSON {
				write = func() error { return writeJSON(io.out, a) }
			}
			return allBut(a.GetMissingShards(), write())
		})
	}
	cmd.AddCommand(newReset(io))
	return cmd
}

func newReset(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Forget what became of a program that is run once",
		Long: `Reset forgets the outcome that is recorded under KEY. The next attempt is the first
again, even if the last one has succeeded. While somebody holds KEY, reset is refused,
because somebody may be at work.

Only admins may do it: root and the sidecar's own user, or those of
serve --admin-uid and --admin-unit.

With -o json it prints one ResetOutcomeResponse of the API.`,
		Example: `  locksidecar outcomes reset withdrawals/4711`,
		Args:    argsBetween(1, 1, "one KEY"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			o, err := c.ResetOutcome(ctx, args[0])
			switch {
			case err != nil:
				return err
			case o == nil:
				return fmt.Errorf("nothing is recorded under %q", args[0])
			case asJSON:
				return writeJSON(io.out, &pb.ResetOutcomeResponse{Outcome: o})
			}
			_, err = fmt.Fprintf(io.out, "%s: forgotten; it was: %s\n", printable(args[0]), outcomeInWords(o))
			return err
		})
	}
	return cmd
}

// outcomeStates reads a list such as failed,unknown.
func outcomeStates(list string) ([]pb.OutcomeState, error) {
	if list == "" {
		return nil, nil
	}
	var states []pb.OutcomeState
	for name := range strings.SplitSeq(list, ",") {
		state := pb.OutcomeState(pb.OutcomeState_value[strings.ToUpper(name)])
		if state == 0 {
			return nil, usage("--state is %q: must be succeeded, failed or unknown, or some of them with a comma between them", list)
		}
		states = append(states, state)
	}
	return states, nil
}

// writeOutcomes is the table of outcomes.
func writeOutcomes(w io.Writer, outcomes []*pb.Outcome) error {
	if len(outcomes) == 0 {
		_, err := fmt.Fprintln(w, "nothing is recorded")
		return err
	}
	t := newTable(w)
	row(t, "KEY", "STATE", "ATTEMPT", "AGE", "PID", "SESSION", "SIDECAR", "NOTE")
	for _, o := range outcomes {
		row(t, printable(o.GetResource()), o.GetState().String(), strconv.Itoa(int(o.GetAttempt())), age(o.GetAge().AsDuration()), pidCell(o.GetPid()),
			orDash(printable(o.GetSession())), orDash(printable(o.GetSidecar())), orDash(printable(o.GetNote())))
	}
	return t.Flush()
}

// outcomeInWords says what became of one.
func outcomeInWords(o *pb.Outcome) string {
	s := fmt.Sprintf("attempt %d, %s at %s", o.GetAttempt(), o.GetState(), o.GetAt().AsTime().Local().Format(timeFormat))
	if o.GetSession() != "" {
		s += ", by " + printable(o.GetSession())
	}
	if o.GetSidecar() != "" {
		s += " on " + printable(o.GetSidecar())
	}
	if o.GetNote() != "" {
		s += ": " + printable(o.GetNote())
	}
	return s
}
