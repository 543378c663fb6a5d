// Package oci makes container images of files, without a container engine, and
// so that the same input gives the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one file or directory of a layer.
type File struct {
	Path    string // without a slash at the start; a directory's ends with one
	Mode    int64
	UID     int
	Content []byte
}

// Layer packs files. Whoever may have made them and when does not show.
func Layer(files []File, created time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range slices.SortedFunc(slices.Values(files), func(x, y File) int { return cmp.Compare(x.Path, y.Path) }) {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.Path, Mode: f.Mode, Uid: f.UID, Gid: f.UID,
			Size: int64(len(f.Content)), ModTime: created, Format: tar.FormatPAX,
		}
		if strings.HasSuffix(f.Path, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack files: %w", err)
	}
	return LayerOf(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, gzip.BestCompression)
}

// LayerOf makes a layer of a tar stream, which it opens more than once; level is
// gzip's.
func LayerOf(open func() (io.ReadCloser, error), level int) (v1.Layer, error) {
	l, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching, tarball.WithCompressionLevel(level))
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return l, nil
}

// Image is an image of one layer for Linux on arch.
func Image(layer v1.Layer, arch string, config v1.Config, created time.Time) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(img, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "make image"},
	})
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", arch, v1.Time{Time: created}, config
	if arch == "arm64" {
		file.Variant = "v8"
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return img, nil
}

// Index joins the images of several architectures under one name.
func Index(images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		file, err := img.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: file.OS, Architecture: file.Architecture, Variant: file.Variant},
		}})
	}
	return index, nil
}
