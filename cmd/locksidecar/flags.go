package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/client"
)

// complete tells shells the values of a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag must have been defined before
	}
}

// socketFlag says where the sidecar is.
type socketFlag struct{ given string }

func addSocket(cmd *cobra.Command) *socketFlag {
	s := &socketFlag{}
	cmd.Flags().StringVar(&s.given, "socket", "", "path of the sidecar's Unix socket (default /run/locksidecar/locksidecar.sock where this user\nmay use that, else one in $XDG_RUNTIME_DIR or in a directory of the user's in /tmp)")
	return s
}

// path is the one rule for sidecars and clients.
func (s *socketFlag) path() (string, error) {
	if s.given != "" {
		return s.given, nil
	}
	path, err := client.DefaultSocket()
	if err != nil {
		return "", fmt.Errorf("%w (or give --socket)", err)
	}
	return path, nil
}

// clientFlags are those of every command that asks a sidecar something.
type clientFlags struct {
	socket *socketFlag
	output *outputFlag
}

func addClient(cmd *cobra.Command) *clientFlags {
	return &clientFlags{socket: addSocket(cmd), output: addOutput(cmd)}
}

// ask calls f with a connection to the sidecar.
func (c *clientFlags) ask(ctx context.Context, f func(ctx context.Context, c *client.Client, asJSON bool) error) error {
	asJSON, err := c.output.json()
	if err != nil {
		return err
	}
	path, err := c.socket.path()
	if err != nil {
		return err
	}
	conn, err := client.Dial(ctx, path)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, conn, asJSON)
}

// completeResources offers the names of resources that are held or waited for.
func completeResources(socket *socketFlag) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		path, err := socket.path()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		conn, err := client.Dial(ctx, path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		var names []string
		for l, err := range conn.List(ctx, prefix) {
			if err != nil || len(names) == completionNames {
				break
			}
			names = append(names, l.GetResource())
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
