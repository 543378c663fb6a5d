// Package e2e shows the chart and the image at work on a real Kubernetes. `make
// e2e` runs it; see CONTRIBUTING.md.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
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

func run(m *testing.M) (code int) {
	ctx := context.Background()
	defer func() {
		if !*keep {
			if err := tearDown(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "e2e: clean up:", err)
				code = 1
			}
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
