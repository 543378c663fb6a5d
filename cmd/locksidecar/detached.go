package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

// maxHandle is longer than any handle, in bytes.
const maxHandle = 4096

func newDetached(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "detached",
		Short: "Locks that are taken here and released there",
		Long: `A detached lock lives by a time of its own in the store, and not by the process
that has taken it. Whoever has its handle can extend and release it, at any sidecar of the
store. Apps can also attach it: then they hold it, and are told when it is lost.

Where a command takes a HANDLE, - reads it from standard input: arguments can
be seen by other users of the machine.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDetachedTake(io), newDetachedExtend(io), newDetachedRelease(io))
	return cmd
}

// addTTL is the flag for the time of a detached lock.
func addTTL(cmd *cobra.Command) *time.Duration {
	return cmd.Flags().Duration("ttl", 0, "needed: the lock is free after so long, 1s to 24h, unless it is extended")
}

func checkTTL(d time.Duration) error {
	if err := lock.CheckDetach(d); err != nil {
		return usage("--%w", err)
	}
	return nil
}

func newDetachedTake(io streams) *cobra.Command {
	wait := forever
	cmd := &cobra.Command{
		Use:   "take RESOURCE",
		Short: "Take a lock, detach it, and print its handle",
		Long: `Take takes the lock on RESOURCE, detaches it, and prints its handle. The lock is
held until its --ttl is over, or until somebody with the handle releases it.

With -o json it prints one DetachedHold of the API, which has the fence.

Exit status 75: held by somebody else for all of --wait.`,
		Example: `  handle=$(locksidecar detached take --ttl 1h exports/7)`,
		Args:    argsBetween(1, 1, "one RESOURCE"),
	}
	f := addClient(cmd, io)
	cmd.ValidArgsFunction = completeResources(f.socket)
	ttl := addTTL(cmd)
	shared := cmd.Flags().Bool("shared", false, "share the lock with other shared holders")
	cmd.Flags().Var(&wait, "wait", "how long to wait for the lock, up to 24h; 0s: try once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkTTL(*ttl); err != nil {
			return err
		}
		o := client.AcquireOptions{Detachable: true, Wait: time.Duration(wait)}
		if *shared {
			o.Mode = client.Shared
		}
		switch wait {
		case forever:
			o.Wait = 0
		case 0:
			o.Wait = client.NoWait
		}
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			d, err := takeDetached(ctx, c, args[0], o, *ttl)
			if errors.Is(err, client.ErrLockHeld) || errors.Is(err, client.ErrWaitTimeout) {
				return &exitError{code: exitNotGot, err: err}
			}
			if err != nil {
				return err
			}
			return writeDetached(io.out, d, asJSON, d.GetHandle())
		})
	}
	return cmd
}

func takeDetached(ctx context.Context, c *client.Client, resource string, o client.AcquireOptions, ttl time.Duration) (*pb.DetachedHold, error) {
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "locksidecar detached take"})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it has nothing any more; and the handle must not be lost, whatever the sidecar does now
	l, err := s.Acquire(ctx, resource, o)
	if err != nil {
		return nil, err
	}
	return l.Detach(ctx, ttl)
}

func newDetachedExtend(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "extend HANDLE",
		Short: "Move the end of a detached lock",
		Long: `Extend makes a detached lock end --ttl from now, attached or not.

With -o json it prints one DetachedHold of the API.`,
		Example: `  locksidecar detached extend --ttl 1h - <<<"$handle"`,
		Args:    argsBetween(1, 1, "one HANDLE, or - for standard input"),
	}
	f := addClient(cmd, io).orStore(cmd)
	ttl := addTTL(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkTTL(*ttl); err != nil {
			return err
		}
		handle, err := handleOf(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			d, err := c.ExtendHandle(ctx, handle, *ttl)
			if err != nil {
				return err
			}
			return writeDetached(io.out, d, asJSON, fmt.Sprintf("%s: detached for another %s", printable(d.GetResource()), age(d.GetValidFor().AsDuration())))
		})
	}
	return cmd
}

func newDetachedRelease(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release HANDLE",
		Short: "Release a detached lock",
		Long: `Release ends a detached lock. An app that has attached it is told that it is lost.

With -o json it prints one ReleaseHandleResponse of the API.`,
		Example: `  locksidecar detached release - <<<"$handle"`,
		Args:    argsBetween(1, 1, "one HANDLE, or - for standard input"),
	}
	f := addClient(cmd, io).orStore(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		handle, err := handleOf(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			if err := c.ReleaseHandle(ctx, handle); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(io.out, &pb.ReleaseHandleResponse{})
			}
			_, err := fmt.Fprintln(io.out, "released")
			return err
		})
	}
	return cmd
}

// handleOf is a handle as it was given, or the first line of standard input.
func handleOf(arg string, in io.Reader) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	line, err := bufio.NewReader(io.LimitReader(in, maxHandle)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read handle: %w", err)
	}
	return strings.TrimSpace(line), nil
}

func writeDetached(w io.Writer, d *pb.DetachedHold, asJSON bool, text string) error {
	if asJSON {
		return writeJSON(w, d)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
