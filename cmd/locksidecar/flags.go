package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/config"
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
	store  *storeFlags // nil: there must be a sidecar
	io     streams
}

func addClient(cmd *cobra.Command, io streams) *clientFlags {
	return &clientFlags{socket: addSocket(cmd), output: addOutput(cmd), io: io}
}

// orStore lets a command do without a sidecar. That is only asked for on the command
// line: LOCKSIDECAR_STORE beside a sidecar is the sidecar's.
func (c *clientFlags) orStore(cmd *cobra.Command) *clientFlags {
	c.store = addStoreURL(cmd, "", "ask this store itself, without a sidecar: a URL as for serve")
	c.store.instead(cmd)
	config.OnlyCommandLine(cmd.Flags(), "store")
	config.OnlyCommandLine(cmd.Flags(), "store-file")
	return c
}

// ask calls f with a connection to the sidecar.
func (c *clientFlags) ask(ctx context.Context, f func(ctx context.Context, c *client.Client, asJSON bool) error) (err error) {
	asJSON, err := c.output.json()
	if err != nil {
		return err
	}
	var path string
	if c.store != nil && c.store.given() {
		var own *ownSidecar
		if own, err = startOwnSidecar(ctx, c.store, &logFlags{level: "error", format: "text"}, c.io, false); err != nil {
			return err
		}
		defer func() { err = errors.Join(own.because(err), own.stop()) }()
		path = own.socket
	} else if path, err = c.socket.path(); err != nil {
		return err
	}
	conn, err := client.Dial(ctx, path)
	if err != nil {
		return err
	}
	defer conn.Close()
	return because(ctx, conn, f(ctx, conn, asJSON))
}

// infoLimit is for what is nice to know.
const infoLimit = time.Second

// infoOf is what a sidecar says of itself, or nothing.
func infoOf(ctx context.Context, c *client.Client) *pb.Info {
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), infoLimit)
	defer cancel()
	i, _ := c.Info(ctx)
	return i
}

// because says why a store is unavailable, in place of where to read it.
func because(ctx context.Context, c *client.Client, err error) error {
	if !errors.Is(err, client.ErrStoreUnavailable) {
		return err
	}
	if why := infoOf(ctx, c).GetNotReadyBecause(); why != "" {
		return fmt.Errorf("%w: %s", client.ErrStoreUnavailable, why)
	}
	return err
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
