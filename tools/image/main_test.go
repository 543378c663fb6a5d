package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const created = 1700000000

// program is the head of a program that has no libraries, or asks for a loader.
func program(t *testing.T, machine elf.Machine, loader bool, size int) string {
	t.Helper()
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1,
		Ehsize: 64, Phoff: 64, Phentsize: 56, Phnum: 1, Shentsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	p := elf.Prog64{Type: uint32(elf.PT_LOAD)}
	if loader {
		p.Type = uint32(elf.PT_INTERP)
	}
	var b bytes.Buffer
	for _, part := range []any{h, p, make([]byte, size)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "locksidecar")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func arguments(out string, more ...string) []string {
	return append([]string{
		"-tag", "registry.example/a/locksidecar:v1", "-version", "v1", "-revision", "abc",
		"-created", fmt.Sprint(created), "-out", out,
	}, more...)
}

// build runs the tool, and returns the path of what it wrote.
func build(t *testing.T, more ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := run(t.Context(), arguments(out, more...)); err != nil {
		t.Fatal(err)
	}
	return out
}

// unpack reads a tar stream.
func unpack(t *testing.T, r io.Reader) (content map[string]string, heads map[string]*tar.Header) {
	t.Helper()
	content, heads = map[string]string{}, map[string]*tar.Header{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return content, heads
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name] != "" {
			t.Errorf("%s is there twice", h.Name)
		}
		content[h.Name], heads[h.Name] = string(text), h
		if got := h.ModTime.Unix(); got != created {
			t.Errorf("%s is of %d", h.Name, got)
		}
	}
}

func unpackFile(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content, _ := unpack(t, f)
	return content
}

func TestImage(t *testing.T) {
	binary := program(t, elf.EM_X86_64, false, 0)
	img, err := tarball.ImageFromPath(build(t, "-binary", "amd64="+binary), nil) // as docker load reads it
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := file.Config
	switch {
	case file.OS != "linux", file.Architecture != "amd64", file.Created.Unix() != created:
		t.Errorf("made for %s/%s at %s", file.OS, file.Architecture, file.Created)
	case c.User != "65532:65532", fmt.Sprint(c.Entrypoint, c.Cmd) != "[/locksidecar] [serve]":
		t.Errorf("configuration %+v", c)
	case c.Labels["org.opencontainers.image.version"] != "v1", c.Labels["org.opencontainers.image.revision"] != "abc",
		c.Labels["org.opencontainers.image.created"] != "2023-11-14T22:13:20Z", c.Labels["org.opencontainers.image.title"] != "locksidecar",
		c.Labels["org.opencontainers.image.source"] != source:
		t.Errorf("labels %v", c.Labels)
	}

	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	content, heads := unpack(t, r)
	want := map[string]int64{"locksidecar": 0o755, "etc/ssl/certs/ca-certificates.crt": 0o644}
	for path, h := range heads {
		mode, isFile := want[path]
		switch {
		case isFile && (h.Mode != mode || h.Uid != 0):
			t.Errorf("%s: mode %o, uid %d", path, h.Mode, h.Uid)
		case !isFile && h.Typeflag != tar.TypeDir:
			t.Errorf("%s does not belong there", path)
		case h.Mode&0o022 != 0:
			t.Errorf("%s: mode %o", path, h.Mode)
		case h.Uid != 0 && path != socketDir:
			t.Errorf("%s belongs to %d", path, h.Uid)
		}
		delete(want, path)
	}
	if len(want) > 0 {
		t.Errorf("lacks %v", want)
	}
	if text, err := os.ReadFile(binary); err != nil || content["locksidecar"] != string(text) {
		t.Errorf("another binary (%v)", err)
	}
	if h := heads[socketDir]; h == nil || h.Uid != user {
		t.Errorf("the socket's directory: %+v", h)
	}
}

func TestRoots(t *testing.T) {
	rest, n := roots(), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Error(err)
		}
		n++
	}
	if n < 50 || len(rest) > 0 {
		t.Errorf("%d authorities, and %d bytes behind them", n, len(rest))
	}
}

func TestManyArchitectures(t *testing.T) {
	content := unpackFile(t, build(t, "-binary", "arm64="+program(t, elf.EM_AARCH64, false, 0), "-binary", "amd64="+program(t, elf.EM_X86_64, false, 0)))
	var top, index v1.IndexManifest
	if err := json.Unmarshal([]byte(content["index.json"]), &top); err != nil || len(top.Manifests) != 1 {
		t.Fatal(content["index.json"], err)
	}
	if got := top.Manifests[0].Annotations["io.containerd.image.name"]; got != "registry.example/a/locksidecar:v1" {
		t.Errorf("containerd would call it %s", got)
	}
	if err := json.Unmarshal([]byte(content["blobs/sha256/"+top.Manifests[0].Digest.Hex]), &index); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range index.Manifests {
		got = append(got, m.Platform.String())
		if content["blobs/sha256/"+m.Digest.Hex] == "" {
			t.Errorf("the manifest for %s is missing", m.Platform)
		}
	}
	if fmt.Sprint(got) != "[linux/arm64/v8 linux/amd64]" {
		t.Errorf("made for %v", got)
	}
	var docker []struct{ Layers []string }
	if err := json.Unmarshal([]byte(content["manifest.json"]), &docker); err != nil || len(docker) != 1 || content[docker[0].Layers[0]] == "" {
		t.Errorf("manifest.json: %s (%v)", content["manifest.json"], err)
	}
}

func TestNameWithoutRegistry(t *testing.T) {
	content := unpackFile(t, build(t, "-binary", "amd64="+program(t, elf.EM_X86_64, false, 0), "-tag", "locksidecar:dev"))
	for file, want := range map[string]string{
		"index.json":    `"io.containerd.image.name":"docker.io/library/locksidecar:dev"`,
		"manifest.json": `"RepoTags":["locksidecar:dev"]`,
	} {
		if !strings.Contains(content[file], want) {
			t.Errorf("%s lacks %s: %s", file, want, content[file])
		}
	}
}

func TestReproducible(t *testing.T) {
	binary := program(t, elf.EM_X86_64, false, 100_000)
	one, err := os.ReadFile(build(t, "-binary", "amd64="+binary))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(binary, time.Now(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(build(t, "-binary", "amd64="+binary))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, other) {
		t.Error("built twice, the image differs")
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	to := strings.TrimPrefix(server.URL, "http://") + "/locksidecar:v1"
	ref, err := name.NewTag(to)
	if err != nil {
		t.Fatal(err)
	}
	amd, arm := "amd64="+program(t, elf.EM_X86_64, false, 0), "arm64="+program(t, elf.EM_AARCH64, false, 0)

	build(t, "-push", to, "-binary", amd)
	if img, err := remote.Image(ref); err != nil {
		t.Error(err)
	} else if file, err := img.ConfigFile(); err != nil || file.Architecture != "amd64" {
		t.Errorf("%+v, %v", file, err)
	}
	archive := unpackFile(t, build(t, "-push", to, "-binary", amd, "-binary", arm))
	if pushed, err := remote.Head(ref); err != nil {
		t.Error(err)
	} else if index := archive["index.json"]; !strings.Contains(index, pushed.Digest.String()) { // by which a release says what will be pushed
		t.Errorf("pushed as %s, the archive leads to %s", pushed.Digest, index)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		if file, err := img.ConfigFile(); err != nil || file.Architecture != arch {
			t.Errorf("%s: %+v, %v", arch, file, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	good := program(t, elf.EM_X86_64, false, 0)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"nothing", "needs -binary", nil},
		{"an argument", "no arguments", []string{"-binary", "amd64=" + good, "x"}},
		{"dynamic", "not static", []string{"-binary", "amd64=" + program(t, elf.EM_X86_64, true, 0)}},
		{"another architecture", "made for EM_AARCH64", []string{"-binary", "amd64=" + program(t, elf.EM_AARCH64, false, 0)}},
		{"no program", "not a Linux program", []string{"-binary", "amd64=" + text}},
		{"unknown architecture", `"mips" is not one of amd64, arm64`, []string{"-binary", "mips=" + good}},
		{"too large", "more than the 30000000", []string{"-binary", "amd64=" + program(t, elf.EM_X86_64, false, maxUnpacked)}},
		{"not there", "no such file", []string{"-binary", "amd64=/none"}},
		{"twice", "each ARCH once", []string{"-binary", "amd64=" + good, "-binary", "amd64=" + good}},
		{"bad name", "can only contain", []string{"-binary", "amd64=" + good, "-tag", "a b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			err := run(context.Background(), arguments(out, c.args...))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("wrote an image")
			}
		})
	}
}
