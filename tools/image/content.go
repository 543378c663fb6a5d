package main

import (
	"bytes"
	"debug/elf"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/locksidecar/locksidecar/tools/image/oci"
)

const (
	user      = 65532 // "nonroot" of other images
	socketDir = "run/locksidecar/"
	source    = "https://github.com/locksidecar/locksidecar"
)

var machines = map[string]elf.Machine{
	"amd64":   elf.EM_X86_64,
	"arm64":   elf.EM_AARCH64,
	"ppc64le": elf.EM_PPC64,
	"riscv64": elf.EM_RISCV,
	"s390x":   elf.EM_S390,
}

// image makes the image of one architecture, and tells what it weighs unpacked.
func (o *options) image(arch string) (img v1.Image, size int, err error) {
	binary, err := os.ReadFile(o.binaries[arch])
	if err != nil {
		return nil, 0, fmt.Errorf("read the binary: %w", err)
	}
	if err := checkStatic(binary, arch); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", o.binaries[arch], err)
	}
	files := files(binary)
	if o.licence != "" {
		more, err := o.materials(binary)
		if err != nil {
			return nil, 0, err
		}
		files = append(files, more...)
	}
	for _, f := range files {
		size += len(f.Content)
	}
	layer, err := oci.Layer(files, o.created)
	if err != nil {
		return nil, 0, err
	}
	img, err = oci.Image(layer, arch, o.config(), o.created)
	return img, size, err
}

// materials are the licences of what is in the binary. It also writes the bill of materials.
func (o *options) materials(binary []byte) ([]oci.File, error) {
	all, err := modules(binary)
	if err != nil {
		return nil, err
	}
	if o.sbom != "" {
		text, err := bill(o.version, o.revision, o.created, all)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(o.sbom, text, 0o644); err != nil { //nolint:gosec // for everybody to read
			return nil, fmt.Errorf("write the bill of materials: %w", err)
		}
	}
	from, err := findSources()
	if err != nil {
		return nil, err
	}
	return from.licences(o.licence, all)
}

// files are all that is in the image, but for licences. The socket's directory is there so that a
// new Docker volume mounted on it belongs to the user.
func files(binary []byte) []oci.File {
	return []oci.File{
		{Path: "locksidecar", Mode: 0o755, Content: binary},
		{Path: "etc/", Mode: 0o755},
		{Path: "etc/ssl/", Mode: 0o755},
		{Path: "etc/ssl/certs/", Mode: 0o755},
		{Path: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Content: roots()},
		{Path: "run/", Mode: 0o755},
		{Path: socketDir, Mode: 0o755, UID: user},
	}
}

func (o *options) config() v1.Config {
	return v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/locksidecar"},
		Cmd:        []string{"serve"},
		WorkingDir: "/",
		Env:        []string{"PATH=/", "LOCKSIDECAR_SOCKET=/" + socketDir + "locksidecar.sock"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "locksidecar",
			"org.opencontainers.image.description": "Distributed locks for the app beside it",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      source,
			"org.opencontainers.image.version":     o.version,
			"org.opencontainers.image.revision":    o.revision,
			"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
		},
	}
}

// roots are the authorities that Mozilla trusts, as PEM. Those that it trusts
// only for certificates from before a day are left out: a file cannot say so.
func roots() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer takes everything
		}
	}
	return b.Bytes()
}

// checkStatic refuses what could not run in an image without libraries, or on
// that architecture.
func checkStatic(binary []byte, arch string) error {
	want, known := machines[arch]
	if !known {
		return fmt.Errorf("architecture %q is not one of %s", arch, strings.Join(slices.Sorted(maps.Keys(machines)), ", "))
	}
	f, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("not a Linux program: %w", err)
	}
	if f.Machine != want {
		return fmt.Errorf("made for %s", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("not static: build it with CGO_ENABLED=0")
		}
	}
	return nil
}
