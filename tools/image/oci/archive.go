package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// archive writes images as one file that `docker load`, `podman load`,
// `ctr image import` and `kind load image-archive` take: an OCI layout, and
// beside it the manifest.json of old, as docker save writes both. Docker without
// containerd's image store reads only the latter, which has room for one
// architecture: the first.
type archive struct {
	w       *tar.Writer
	created time.Time
	written map[v1.Hash]bool
	err     error
}

// WriteArchive writes the images of one name, one for each architecture.
func WriteArchive(to io.Writer, tag name.Tag, images []v1.Image, created time.Time) error {
	if len(images) == 0 {
		return errors.New("write archive: no image")
	}
	a := &archive{w: tar.NewWriter(to), created: created, written: map[v1.Hash]bool{}}
	top, err := a.blobs(images)
	if err != nil {
		return err
	}
	// What containerd takes for the name, and what others do.
	top.Annotations = map[string]string{
		"io.containerd.image.name":          fullName(tag),
		"org.opencontainers.image.ref.name": tag.TagStr(),
	}
	docker, err := dockerManifest(images[0], tag)
	if err != nil {
		return err
	}
	a.json("index.json", v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top}})
	a.json("manifest.json", docker)
	a.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"})
	if a.err != nil {
		return a.err
	}
	if err := a.w.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// fullName is the name that Kubernetes and containerd make of an image's name.
func fullName(tag name.Tag) string {
	registry := tag.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	return registry + "/" + tag.RepositoryStr() + ":" + tag.TagStr()
}

// blobs writes all that the images are made of, and returns what leads to it.
func (a *archive) blobs(images []v1.Image) (top v1.Descriptor, err error) {
	for _, img := range images {
		if err := a.image(img); err != nil {
			return top, err
		}
	}
	var root interface {
		MediaType() (types.MediaType, error)
		RawManifest() ([]byte, error)
	} = images[0]
	if len(images) > 1 {
		if root, err = Index(images); err != nil {
			return top, err
		}
	}
	raw, err := root.RawManifest()
	if err != nil {
		return top, fmt.Errorf("make manifest: %w", err)
	}
	if top.MediaType, err = root.MediaType(); err != nil {
		return top, fmt.Errorf("make manifest: %w", err)
	}
	if top.Digest, top.Size, err = v1.SHA256(bytes.NewReader(raw)); err != nil {
		return top, fmt.Errorf("make manifest: %w", err)
	}
	a.blob(top.Digest, raw)
	return top, a.err
}

func (a *archive) image(img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("read layers: %w", err)
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return fmt.Errorf("read layer: %w", err)
		}
		r, err := l.Compressed()
		if err != nil {
			return fmt.Errorf("read layer: %w", err)
		}
		content, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return fmt.Errorf("read layer: %w", err)
		}
		a.blob(digest, content)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	for _, content := range [][]byte{config, manifest} {
		digest, _, err := v1.SHA256(bytes.NewReader(content))
		if err != nil {
			return fmt.Errorf("hash: %w", err)
		}
		a.blob(digest, content)
	}
	return a.err
}

func (a *archive) blob(digest v1.Hash, content []byte) {
	if a.written[digest] { // the same file in two images
		return
	}
	a.written[digest] = true
	a.file(blobPath(digest), content)
}

func blobPath(digest v1.Hash) string { return "blobs/" + strings.ReplaceAll(digest.String(), ":", "/") }

func (a *archive) json(path string, v any) {
	content, err := json.Marshal(v)
	if err != nil {
		a.err = errors.Join(a.err, fmt.Errorf("make %s: %w", path, err))
		return
	}
	a.file(path, content)
}

func (a *archive) file(path string, content []byte) {
	if a.err != nil {
		return
	}
	a.err = a.w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(content)), ModTime: a.created, Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = a.w.Write(content)
	}
	if a.err != nil {
		a.err = fmt.Errorf("write %s: %w", path, a.err)
	}
}

// dockerEntry is one image in manifest.json.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func dockerManifest(img v1.Image, tag name.Tag) ([]dockerEntry, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	entry := dockerEntry{Config: blobPath(m.Config.Digest), RepoTags: []string{tag.String()}}
	for _, l := range m.Layers {
		entry.Layers = append(entry.Layers, blobPath(l.Digest))
	}
	return []dockerEntry{entry}, nil
}
