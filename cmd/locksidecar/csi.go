package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/supervise"
	"github.com/locksidecar/locksidecar/node/csi"
)

const csiHelp = `Csi brings into each pod a folder with a socket for it, as a driver of CSI volumes, and
writes down which pods have one. It registers with the kubelet by itself, and runs until
SIGTERM, SIGINT or SIGHUP. What it has mounted stays.

It must run as root of the node, and the node must see its mounts. So its container must be
privileged, and have the kubelet's folder at the same path with the propagation Bidirectional.

A volume of a pod must be inline and say readOnly: true:

  volumes:
    - name: locks
      csi: {driver: node.locksidecar.io, readOnly: true}

The CSIDriver of that name must have podInfoOnMount: true and volumeLifecycleModes: [Ephemeral].
One sidecar for all pods of a node listens there: locksidecar serve --principal pod. The chart starts both
(mode: node): docs/kubernetes.md.

Exit status: 0 stopped as asked, 1 failed, 2 wrong settings.`

func newCSI(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "csi",
		Short: "Bring the node's sockets into pods",
		Long:  csiHelp,
		Args:  noArgs,
	}
	o := csi.Options{Version: buildVersion()}
	f := cmd.Flags()
	f.StringVar(&o.Name, "driver-name", "node.locksidecar.io", "name of the driver, as in the CSIDriver object and in volumes")
	f.StringVar(&o.Node, "node-name", "", "name of this node (default: the host's name)")
	f.StringVar(&o.Kubelet, "kubelet-folder", "/var/lib/kubelet", "the kubelet's folder (its --root-dir), at the path by which the kubelet names it")
	f.StringVar(&o.Folder, "node-folder", "/run/locksidecar-node", "folder of the node that the driver shares with who listens: sockets/ has a folder for each pod, which is mounted into it, and pods/ has a file for each pod")
	f.Uint32Var(&o.Owner, "socket-owner", 0, "user and group who may make the sockets: whom the folder socket/ and those in sockets/ belong to")
	log := addLog(cmd, "info")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Logger, err = log.logger(io.err); err != nil {
			return err
		}
		if o.Node == "" {
			if o.Node, err = os.Hostname(); err != nil {
				return usage("--node-name is needed: %w", err)
			}
		}
		if err := o.Check(); err != nil {
			return usage("%w", err)
		}
		return runCSI(cmd.Context(), o)
	}
	return cmd
}

func runCSI(ctx context.Context, o csi.Options) error {
	supervise.WriteAlways()
	ctx, stop := untilSignal(ctx, func(s os.Signal) {
		o.Logger.Info("signal received; another one ends this at once", keySignal, s)
	})
	defer stop()
	o.Logger.Info("starting", keyVersion, o.Version, keyName, o.Name)
	if err := csi.Run(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	o.Logger.Info("stopped")
	return nil
}
