// Command image makes the container image of locksidecar: its static binary,
// the certificates of public authorities, and nothing else. It needs no
// container engine. `make image` calls it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/locksidecar/locksidecar/tools/image/oci"
)

// maxUnpacked is what an image may weigh on a node.
const maxUnpacked = 30_000_000

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	binaries map[string]string // architecture -> path
	order    []string          // of architectures, as they were given
	tag      name.Tag
	version  string
	revision string
	created  time.Time
	licence  string // file with ours; empty: no licences in the image
	sbom     string // file to write; empty: none
	out      string
	push     string
}

func parse(args []string) (*options, error) {
	o := &options{binaries: map[string]string{}}
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.Func("binary", "ARCH=PATH of a static binary; once for each architecture", func(s string) error {
		arch, path, ok := strings.Cut(s, "=")
		if !ok || o.binaries[arch] != "" {
			return fmt.Errorf("must be ARCH=PATH, each ARCH once")
		}
		o.binaries[arch] = path
		o.order = append(o.order, arch)
		return nil
	})
	f.Func("tag", "NAME:TAG of the image", func(s string) (err error) {
		o.tag, err = name.NewTag(s)
		return err
	})
	f.StringVar(&o.version, "version", "unknown", "version of the binary")
	f.StringVar(&o.revision, "revision", "unknown", "revision of the source")
	f.Func("created", "seconds since 1970 that all times in the image show", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		o.created = time.Unix(n, 0).UTC()
		return err
	})
	f.StringVar(&o.licence, "licence", "", "file with the licence of locksidecar: put it into the image, with those of all modules in the binary")
	f.StringVar(&o.sbom, "sbom", "", "file to write a bill of materials to (SPDX 2.3)")
	f.StringVar(&o.out, "out", "", "archive to write")
	f.StringVar(&o.push, "push", "", "NAME:TAG to push it to")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if len(o.order) == 0 || o.tag.Name() == "" || o.out == "" || o.created.IsZero() || f.NArg() > 0 {
		return nil, fmt.Errorf("needs -binary, -tag, -created and -out, and no arguments (see -help)")
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	var images []v1.Image
	for _, arch := range o.order {
		img, size, err := o.image(arch)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		packed, err := packedSize(img)
		if err != nil {
			return err
		}
		fmt.Printf("linux/%s: %.1f MB to pull, %.1f MB unpacked\n", arch, float64(packed)/1e6, float64(size)/1e6)
		if size > maxUnpacked {
			return fmt.Errorf("%s: unpacked it has %d bytes, more than the %d that are promised", arch, size, maxUnpacked)
		}
		images = append(images, img)
	}
	if err := o.write(images); err != nil {
		return err
	}
	fmt.Printf("%s is in %s\n", o.tag, o.out)
	if o.push == "" {
		return nil
	}
	digest, err := push(ctx, o.push, images)
	if err != nil {
		return err
	}
	fmt.Printf("pushed %s@%s\n", o.push, digest)
	return nil
}

func packedSize(img v1.Image) (int64, error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, fmt.Errorf("read manifest: %w", err)
	}
	size := m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return size, nil
}

// write replaces the archive when it is whole.
func (o *options) write(images []v1.Image) (err error) {
	f, err := os.CreateTemp(filepath.Dir(o.out), filepath.Base(o.out)+".*")
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := oci.WriteArchive(f, o.tag, images, o.created); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return os.Rename(f.Name(), o.out)
}

// push sends the images to a registry, with the credentials of docker login.
func push(ctx context.Context, to string, images []v1.Image) (digest v1.Hash, err error) {
	ref, err := name.NewTag(to)
	if err != nil {
		return digest, fmt.Errorf("push: %w", err)
	}
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if len(images) == 1 {
		if err := remote.Write(ref, images[0], with...); err != nil {
			return digest, fmt.Errorf("push: %w", err)
		}
		return images[0].Digest()
	}
	index, err := oci.Index(images)
	if err != nil {
		return digest, err
	}
	if err := remote.WriteIndex(ref, index, with...); err != nil {
		return digest, fmt.Errorf("push: %w", err)
	}
	return index.Digest()
}
