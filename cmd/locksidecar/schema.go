package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends/mysqllock"
)

const schemaHelp = `Schema prints the SQL that makes the tables of a store, for whoever may create
tables where the sidecar may not. It can be run again: what is there is left alone.
Then start sidecars with --migrate=false.

STORE is mysql, for MySQL and MariaDB alike.`

const schemaExamples = `  # into the database "locks"
  locksidecar schema mysql | mysql locks

  # for sidecars with ?strategy=row&prefix=app_
  locksidecar schema --strategy row --prefix app_ mysql`

func newSchema(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:       "schema [flags] STORE",
		Short:     "Print the tables that a store needs",
		Long:      schemaHelp,
		Example:   schemaExamples,
		Args:      argsBetween(1, 1, "STORE"),
		ValidArgs: []string{"mysql"},
	}
	strategy := cmd.Flags().String("strategy", mysqllock.Strategies[0], "as in the store's URL: tables, row or shedlock")
	prefix := cmd.Flags().String("prefix", mysqllock.DefaultPrefix, "as in the store's URL: what the names of tables begin with")
	complete(cmd, "strategy", mysqllock.Strategies...)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if args[0] != "mysql" {
			return usage("there are tables for the store mysql, not for %q", args[0])
		}
		sql, err := mysqllock.Schema(*strategy, *prefix)
		if err != nil {
			return usage("%w", err)
		}
		_, err = fmt.Fprint(io.out, sql)
		return err
	}
	return cmd
}
