package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/internal/config"
)

// annotationRuns marks the command whose exit status is that of another program.
const annotationRuns = "runs"

const rootHelp = `locksidecar gives apps distributed locks: a small process beside the app keeps
the lock in a store, hands out fencing tokens, tells the app at once when the
lock is lost, and releases everything the moment the app dies.

Every flag can also be given in the environment and in a YAML file that
--config names. A flag wins over the environment, the environment over the file:

  --max-holds 100                on the command line
  LOCKSIDECAR_MAX_HOLDS=100      in the environment
  max-holds: 100                 in the file

All commands may use the same file: each reads the keys that are its flags. There is
one exception: run, once and lead take the store, ttl, namespace and name only from the command
line and the environment.`

const rootExamples = `  # a sidecar for one host, in this terminal
  locksidecar serve

  # the same for many hosts
  locksidecar serve --store ` + backends.Example + `

  # run a program while a lock is held
  locksidecar run reports/daily -- ./make-report.sh

  # who has what
  locksidecar list`

// rootOf makes as much of the tree of commands as a command line needs. A sidecar runs for long, and keeps what
// was made: the flags of all other commands are 160 KiB.
func rootOf(io streams, args []string) *cobra.Command {
	if len(args) > 0 && args[0] == "serve" {
		root := bareRoot(io)
		root.AddCommand(newServe(io))
		return root
	}
	return newRoot(io)
}

// newRoot makes the tree of commands.
func newRoot(io streams) *cobra.Command {
	root := bareRoot(io)
	root.AddCommand(
		newServe(io),
		newRun(io),
		newOnce(io),
		newLead(io),
		newLeader(io),
		newList(io),
		newGet(io),
		newWatch(io),
		newDeadlocks(io),
		newRelease(io),
		newDetached(io),
		newOutcomes(io),
		newInfo(io),
		newHealth(io),
		newSchema(io),
		newShards(io),
		newVersion(io),
		newMan(io),
		newCSI(io),
	)
	return root
}

// bareRoot is the tree without commands.
func bareRoot(io streams) *cobra.Command {
	root := &cobra.Command{
		Use:               "locksidecar",
		Short:             "Distributed locks for the app beside it",
		Long:              rootHelp,
		Version:           buildVersion(),
		Example:           rootExamples,
		Args:              noArgs,
		SilenceErrors:     true, // outcome prints them
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return configure(cmd) },
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetOut(io.out)
	root.SetErr(io.err)
	root.PersistentFlags().String("config", "", "YAML file with flags as keys")
	root.SetFlagErrorFunc(flagError)
	return root
}

// configure fills the flags of cmd from the environment and the file.
func configure(cmd *cobra.Command) error {
	if isCompletion(cmd) { // shells want no errors
		return nil
	}
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return fmt.Errorf("read flag config: %w", err)
	}
	if path == "" {
		path = os.Getenv(config.EnvName("config"))
	}
	from := config.Source{Env: os.LookupEnv, File: path}
	if path != "" {
		from.Known = flagNames(newRoot(streams{}))
	}
	err = config.Apply(cmd.Flags(), from)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	return nil
}

func isCompletion(cmd *cobra.Command) bool {
	for c := cmd; c != nil; c = c.Parent() {
		switch c.Name() {
		case "completion", "help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
			return true
		}
	}
	return false
}

// flagNames are the names of all flags of cmd and below.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	for _, c := range cmd.Commands() {
		names = append(names, flagNames(c)...)
	}
	return names
}

// flagError says which flag may have been meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name := strings.TrimLeft(unknown.GetSpecifiedName(), "-")
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := config.Nearest(name, names); near != "" && len(name) > 1 {
			return usage("%w; did you mean --%s?", err, near)
		}
	}
	return usage("%w", err)
}

// The checks of arguments; like cobra's, with the exit status of a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		hint := ""
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("; did you mean %s?", near[0])
		}
		return usage("unexpected argument %q%s", args[0], hint)
	}
	return nil
}

func argsBetween(least, most int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage("something is missing: give %s", names)
		case len(args) > most:
			return usage("too much is given, %q for instance: give %s", args[most], names)
		}
		return nil
	}
}
