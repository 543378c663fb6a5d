// Command rootfs makes an image archive of a tar file with a root file system:
// rootfs TAR NAME:TAG ARCHIVE COMMAND…. The tests on a cluster make their images so.
package main

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/locksidecar/locksidecar/tools/image/oci"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: rootfs TAR NAME:TAG ARCHIVE COMMAND…")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "rootfs:", err)
		os.Exit(1)
	}
}

func run(tree, to, archive string, command []string) error {
	tag, err := name.NewTag(to)
	if err != nil {
		return fmt.Errorf("name: %w", err)
	}
	layer, err := oci.LayerOf(func() (io.ReadCloser, error) { return os.Open(tree) }, gzip.BestSpeed)
	if err != nil {
		return err
	}
	created := time.Unix(0, 0).UTC()
	config := v1.Config{Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: command}
	img, err := oci.Image(layer, runtime.GOARCH, config, created)
	if err != nil {
		return err
	}
	f, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := oci.WriteArchive(f, tag, []v1.Image{img}, created); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
