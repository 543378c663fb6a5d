package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/client"
)

const leadHelp = `Lead waits until nobody else leads NAME, runs CMD while this process leads, and stands
for election again when CMD has ended with status 0. So start it on each node: one of them
leads, and when it ends, or its process or machine dies, the next one does.

To lead NAME is to hold the lock on NAME. All that is said about run, the environment of
CMD, signals, the loss of the lock and the exit status, is true of lead. When the lead is lost,
CMD is ended before anybody else can lead, and lead ends with status 76. Whatever restarts lead
then (systemd, Kubernetes, a loop) makes it a candidate again. With --wait 0s lead does not
wait, and ends with 75 when somebody else leads.

When lead gets SIGTERM, SIGINT or SIGQUIT, it passes the signal on to CMD. When CMD ends, lead ends
with CMD's status, and does not stand for election again. SIGHUP does the same in a terminal only.

What --publish says is shown to those who ask for the leader: locksidecar leader NAME,
GET /v1/leader/NAME.`

const leadExamples = `  # on each node: one of them runs the scheduler
  locksidecar lead scheduler -- ./scheduler

  # and others find it
  locksidecar lead primary --publish 10.0.0.7:9000 -- ./server --listen :9000
  locksidecar leader primary --watch

  # no sidecar needed: straight to the store
  locksidecar lead --store ` + backends.Example + ` scheduler -- ./scheduler`

// campaignEvery is how often at most one process stands for election: others come first
// after a CMD that ends at once.
const campaignEvery = time.Second

func newLead(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "lead NAME [flags] -- CMD [ARG...]",
		Short:       "Run a program while this process is the one that leads",
		Long:        leadHelp,
		Example:     leadExamples,
		Args:        argsBetween(1, 1<<20, "NAME -- CMD [ARG...]"),
		Annotations: map[string]string{annotationRuns: "CMD"},
	}
	r := addRun(cmd, io, "NAME")
	r.again = campaignAgain
	cmd.Flags().StringVar(&r.publish, "publish", "", "what to tell who asks for the leader, such as host:port; at most 1 KiB")
	return cmd
}

// campaignAgain begins this program again, as the same process: nothing of the campaign
// before is left, such as the signals that it ignores.
func campaignAgain(began time.Time) error {
	time.Sleep(campaignEvery - time.Since(began))
	signal.Reset(syscall.SIGTTOU, syscall.SIGPIPE)
	return fmt.Errorf("begin again: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ())) //nolint:gosec // it is this program
}

// keepName: after a campaign before, ps(1) would call this process "exe".
func keepName() {
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0o600)
}

// metadata is what the session says about who leads.
func (r *runFlags) metadata() map[string]string {
	if r.publish == "" {
		return nil
	}
	return map[string]string{client.LeaderMetadata: r.publish}
}
