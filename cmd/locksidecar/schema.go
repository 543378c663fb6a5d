package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends"
)

// newSchema knows the stores with tables only by what they say of themselves.
func newSchema(io streams) *cobra.Command {
	stores := backends.WithTables()
	var names, about []string
	for _, s := range stores {
		names = append(names, s.Store)
		about = append(about, s.About)
	}
	usual := stores[0]
	other := usual.Strategies[min(1, len(usual.Strategies)-1)]
	cmd := &cobra.Command{
		Use:   "schema [flags] STORE",
		Short: "Print the tables that a store needs",
		Long: `Schema prints the SQL that makes the tables of a store. Use it when the sidecar may not
create tables. You can run the SQL again: it leaves alone what is there. Then start the
sidecars with --migrate=false.

STORE is ` + strings.Join(about, "; or ") + ".",
		Example: fmt.Sprintf(`  # into the database "locks"
  locksidecar schema %[1]s | %[2]s

  # for sidecars with ?strategy=%[3]s&prefix=app_
  locksidecar schema --strategy %[3]s --prefix app_ %[1]s`, usual.Store, usual.Client, other),
		Args:      argsBetween(1, 1, "STORE"),
		ValidArgs: names,
	}
	strategy := cmd.Flags().String("strategy", usual.Strategies[0], "as in the store's URL: "+strings.Join(usual.Strategies, ", "))
	prefix := cmd.Flags().String("prefix", usual.Prefix, "as in the store's URL: what the names of tables begin with")
	complete(cmd, "strategy", usual.Strategies...)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		i := slices.Index(names, args[0])
		if i < 0 {
			return usage("there are tables for the store %s, not for %q", strings.Join(names, " or "), args[0])
		}
		sql, err := stores[i].Schema(*strategy, *prefix)
		if err != nil {
			return usage("%w", err)
		}
		_, err = fmt.Fprint(io.out, sql)
		return err
	}
	return cmd
}
