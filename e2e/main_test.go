// Package e2e shows the chart and the image at work on a real Kubernetes. `make
// e2e` runs it; see CONTRIBUTING.md.
//
// Tests run in the order of their files: what the API server says of pods, what is put into
// them, how they live and die, and last the release itself, which is upgraded and taken away.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	images = flag.String("images", "localhost/locksidecar:e2e,localhost/locksidecar-e2e-app:1", "images of the sidecar and of the apps")
	chart  = flag.String("chart", "../deploy/helm/locksidecar", "the chart")
	doc    = flag.String("doc", "", "file whose life cycle table is to be replaced by what was measured")
	keep   = flag.Bool("keep", false, "leave everything in the cluster")
)

// What all tests share.
const (
	systemNS = "locksidecar-e2e-system" // the release, Redis, and the hand
	appsNS   = "locksidecar-e2e"
	release  = "locksidecar"
	patience = 2 * time.Minute // for everything that must happen, however busy the machine is
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// interrupted ends when somebody wants the tests to end early. Then only what cleans up talks
// to the cluster.
var interrupted, interrupt = context.WithCancel(context.Background())

type cleaning struct{} // key of the contexts of those who clean up

func run(m *testing.M) (code int) {
	ctx := context.Background()
	cleanUp := sync.OnceValue(func() error {
		if *keep {
			return nil
		}
		err := tearDown(context.WithValue(ctx, cleaning{}, true))
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e: clean up:", err)
		}
		return err
	})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // the next one ends us at once
		interrupt()
		_ = cleanUp() // it says why not
		os.Exit(130)
	}()
	defer func() {
		if cleanUp() != nil {
			code = 1
		}
	}()
	if err := setUp(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: set up:", err)
		return 1
	}
	code = m.Run()
	if code == 0 && len(table.rows) > 0 {
		fmt.Print("\n", table.markdown(), "\n")
		if *doc != "" {
			if err := table.replaceIn(*doc); err != nil {
				fmt.Fprintln(os.Stderr, "e2e:", err)
				return 1
			}
		}
	}
	return code
}
