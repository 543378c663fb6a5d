package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/config"
)

const (
	// defaultHealthTimeout lets a busy machine answer, and leaves time to say why
	// not before a probe with a time limit of 3 s and more is over.
	defaultHealthTimeout = 2 * time.Second
	maxHealthAnswer      = 4 << 10
	livePath             = "/healthz"
)

const healthHelp = `Health asks the sidecar at the socket whether it is ready. It prints one line, and says
the same by its exit status. It is made for container probes.

Without --live it asks whether locks can be granted: the sidecar serves its
socket, has a lease in the store, the store answers, and it is not about to stop.
Use it for readiness probes.

With --once it asks the same, but a sidecar that could grant locks before stays ready
while its store is away. Use it for readiness probes of apps that also do work without locks:
a short outage of the store then does not take all of them out of service.

With --live it asks only whether the process answers at the socket, whatever the
store does. Use it for startup and liveness probes. Do not restart a sidecar because
its store is down: that does not bring the store back, and the apps lose their
sessions.

Exit status: 0 healthy, 1 not, 2 wrong settings.`

const healthExamples = `  # Kubernetes
  startupProbe:   {exec: {command: [/locksidecar, health, --live]}, periodSeconds: 1, timeoutSeconds: 3, failureThreshold: 60}
  readinessProbe: {exec: {command: [/locksidecar, health]}, periodSeconds: 5, timeoutSeconds: 3}

  # Compose, whose other form would need a shell
  healthcheck: {test: [CMD, /locksidecar, health]}

  # wait in a shell until locks can be granted
  until locksidecar health; do sleep 1; done`

func newHealth(io streams) *cobra.Command {
	var (
		live    bool
		once    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:               "health",
		Short:             "Check whether the sidecar is ready, or alive",
		Long:              healthHelp,
		Example:           healthExamples,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := addSocket(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "only whether the process answers, whatever the store does")
	cmd.Flags().BoolVar(&once, "once", false, "whether locks can be granted, or could before")
	config.Rivals(cmd.Flags(), "live", "once")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultHealthTimeout, "how long the answer may take")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return usage("--timeout is %s: must be more than 0", timeout)
		}
		path, err := socket.path()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no answer within %s", timeout))
		defer cancel()
		question := "/readyz"
		switch {
		case live:
			question = livePath
		case once:
			question = "/readyz?once=true"
		}
		text, err := askHealth(ctx, path, question)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(io.out, text)
		return err
	}
	return cmd
}

// askHealth asks over HTTP, which costs a short process less than gRPC does.
func askHealth(ctx context.Context, socket, question string) (text string, err error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://locksidecar"+question, nil)
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	a, err := transport.RoundTrip(q)
	if err != nil {
		return "", whyNoAnswer(ctx, socket, err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(io.LimitReader(a.Body, maxHealthAnswer))
	if err != nil {
		return "", whyNoAnswer(ctx, socket, err)
	}
	text = strings.TrimSpace(string(body))
	switch {
	case a.StatusCode == http.StatusOK:
		return text, nil
	case question == livePath && a.StatusCode == http.StatusTooManyRequests:
		// All connections are taken, by apps: it is alive, and a restart would
		// end what they hold.
		return "alive, but has no room for another connection", nil
	default:
		return "", errors.New(refusalText(body))
	}
}

// refusalText is the message in an error of the API, and any other text as it is.
func refusalText(body []byte) string {
	var st struct{ Message string }
	if json.Unmarshal(body, &st) == nil && st.Message != "" {
		return st.Message
	}
	return strings.TrimSpace(string(body))
}

func whyNoAnswer(ctx context.Context, socket string, err error) error {
	var op *net.OpError
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &op) && op.Op == "dial":
		c, explained := client.Dial(ctx, socket) // it knows what to do about it
		if explained != nil {
			return explained
		}
		_ = c.Close()
	}
	return fmt.Errorf("ask the sidecar at %s: %w", socket, err)
}
