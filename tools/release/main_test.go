package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newRelease is a release whose parts are written into folders of the test.
func newRelease(t *testing.T) *release {
	t.Helper()
	version, err := readVersion(root)
	if err != nil {
		t.Fatal(err)
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return &release{root: abs, out: t.TempDir(), stage: t.TempDir(), version: version, created: time.Unix(1700000000, 0).UTC()}
}

// All parts have the version that is in VERSION.
func TestOneVersion(t *testing.T) {
	want, err := readVersion(root)
	if err != nil {
		t.Fatal(err)
	}
	err = eachCopy(root, func(path, version string) string {
		if version != want {
			t.Errorf("%s has version %q, %s has %s: make release-version V=%[4]s", path, version, versionFile, want)
		}
		return version
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSetVersion(t *testing.T) {
	dir := t.TempDir()
	for _, c := range copies {
		files, err := filepath.Glob(filepath.Join(root, c.files))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := write(filepath.Join(dir, strings.TrimPrefix(f, root)), []byte(read(t, f)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := setVersion(dir, "7.8.9"); err != nil {
		t.Fatal(err)
	}
	if v, err := readVersion(dir); v != "7.8.9" {
		t.Errorf("VERSION has %q: %v", v, err)
	}
	for file, has := range map[string]string{
		"examples/python/pyproject.toml":     `version = "7.8.9"`,
		"examples/node/package.json":         `"version": "7.8.9"`,
		"examples/java/scenarios/pom.xml":    `<version>7.8.9-SNAPSHOT</version>`,
		"deploy/helm/locksidecar/Chart.yaml": "version: 7.8.9\nappVersion: 7.8.9\n",
		"docs/stability.md":                  "The version of all parts is 7.8.9. ",
	} {
		if text := read(t, filepath.Join(dir, file)); !strings.Contains(text, has) {
			t.Errorf("%s lacks %q", file, has)
		}
	}
	for _, bad := range []string{"", "7.8", "v7.8.9", "7.8.9-rc1", "07.8.9"} {
		if err := setVersion(dir, bad); err == nil {
			t.Errorf("takes the version %q", bad)
		}
	}
}

func TestOutside(t *testing.T) {
	page := "See [docs](../../docs/api.md#lines), [one](invoices.js), [here](#tests) and [there](https://a.example/).\n" +
		"<!-- docs-test: not run: it installs -->\n" +
		"```sh\necho '[a](b)'\n```\n" +
		"[folder](../../docs)\n"
	want := "See [docs](" + url + "/blob/v1.2.3/docs/api.md#lines), [one](" + url + "/blob/v1.2.3/examples/node/invoices.js), [here](#tests) and [there](https://a.example/).\n" +
		"```sh\necho '[a](b)'\n```\n" +
		"[folder](" + url + "/tree/v1.2.3/docs)\n"
	got := outside(page, "examples/node", "v1.2.3", func(name string) bool { return name == "docs" })
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A staged folder has what git knows and nothing that was built, and its README leads to what is there.
func TestStaged(t *testing.T) {
	r := newRelease(t)
	dir, err := r.staged(t.Context(), "examples/node")
	if err != nil {
		t.Fatal(err)
	}
	if want := read(t, root+"/examples/node/index.js"); read(t, filepath.Join(dir, "index.js")) != want {
		t.Error("index.js is another one")
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err == nil {
		t.Error("node_modules is staged")
	}
	links := regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(read(t, filepath.Join(dir, "README.md")), -1)
	if len(links) == 0 {
		t.Error("no link in the README")
	}
	for _, m := range links {
		target, ours := strings.CutPrefix(m[1], url+"/")
		if !ours {
			if !strings.HasPrefix(m[1], "#") && !strings.HasPrefix(m[1], "https://") {
				t.Errorf("the link %s leads nowhere", m[1])
			}
			continue
		}
		parts := strings.SplitN(target, "/", 3) // blob, tag, path
		path, _, _ := strings.Cut(parts[2], "#")
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
	if _, err := r.staged(t.Context(), "examples/cobol"); err == nil {
		t.Error("a folder that is not there is staged")
	}
}

func TestIdentify(t *testing.T) {
	for want, text := range map[string]string{
		"Apache-2.0":     read(t, root+"/LICENSE"),
		"MIT":            "Permission is hereby granted, free\nof charge, to any person",
		"BSD-3-Clause":   "Redistribution and use in source and binary forms\n … Neither the name of",
		"BSD-2-Clause":   "Redistribution and use in source and binary forms",
		"ISC":            "Permission to use, copy, modify, and distribute",
		"MPL-2.0":        "Mozilla Public License, version 2.0",
		"Apache-2.0 MIT": "Apache License … Permission is hereby granted, free of charge",
		"":               "All rights reserved.",
	} {
		if got := strings.Join(identify(text), " "); got != want {
			t.Errorf("%.40q is %q, not %q", text, got, want)
		}
	}
	d := dependency{path: "a.example/b", texts: map[string]string{"LICENSE": "All rights reserved."}}
	if _, err := d.spdx(); err == nil {
		t.Error("a licence that nobody knows is taken")
	}
}

// repository is what Maven deploys, with empty jars: the real poms of the project, as a release has them.
func repository(t *testing.T, r *release) map[string]string {
	t.Helper()
	dir, err := r.staged(t.Context(), "examples/java")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.finalPoms(dir); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for artifact, pom := range map[string]string{"locksidecar-java": "pom.xml", "locksidecar-client": "locksidecar-client/pom.xml"} {
		c := coordinates{"io.github.locksidecar", artifact, r.version}
		files[c.file(".pom")] = read(t, filepath.Join(dir, pom))
		if artifact != "locksidecar-java" {
			files[c.file(".jar")], files[c.file("-sources.jar")], files[c.file("-javadoc.jar")] = "j", "s", "d"
		}
	}
	files["io/github/locksidecar/locksidecar-client/maven-metadata.xml"] = "a list of versions"
	return files
}

// on writes files and their checksums into a folder.
func on(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		for suffix, text := range map[string]string{
			"": content, ".md5": fmt.Sprintf("%x", md5.Sum([]byte(content))), ".sha1": fmt.Sprintf("%x", sha1.Sum([]byte(content))),
		} {
			if err := write(filepath.Join(dir, name+suffix), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// What the poms of the project make passes the rules of Maven Central, and breaks them when
// anything that they ask for is taken out.
func TestCentral(t *testing.T) {
	r := newRelease(t)
	files := repository(t, r)
	bundle, err := r.bundle(t.Context(), on(t, files))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkBundle(bundle, false); err != nil {
		t.Error(err)
	}
	z, err := zip.NewReader(bytes.NewReader(bundle), int64(len(bundle)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File {
		if strings.Contains(f.Name, "maven-metadata") {
			t.Errorf("%s is in the bundle", f.Name)
		}
	}
	client := coordinates{"io.github.locksidecar", "locksidecar-client", r.version}
	parent := coordinates{"io.github.locksidecar", "locksidecar-java", r.version}
	for want, broken := range map[string]func(map[string]string){
		"has no name": func(f map[string]string) {
			f[client.file(".pom")] = without(f[client.file(".pom")], "name")
		},
		"has no licence": func(f map[string]string) {
			f[parent.file(".pom")] = without(f[parent.file(".pom")], "licenses")
		},
		"has no developers": func(f map[string]string) {
			f[parent.file(".pom")] = without(f[parent.file(".pom")], "developers")
		},
		"where its sources are": func(f map[string]string) {
			f[parent.file(".pom")] = without(f[parent.file(".pom")], "scm")
		},
		"has no URL": func(f map[string]string) {
			f[parent.file(".pom")] = strings.Replace(f[parent.file(".pom")], "<url>"+url+"</url>", "", 1)
		},
		"has no version of a release": func(f map[string]string) {
			f[parent.file(".pom")] = strings.ReplaceAll(f[parent.file(".pom")], "<version>"+r.version+"<", "<version>"+r.version+"-SNAPSHOT<")
		},
		"has no -sources.jar": func(f map[string]string) { delete(f, client.file("-sources.jar")) },
		"has no -javadoc.jar": func(f map[string]string) { delete(f, client.file("-javadoc.jar")) },
		"its parent is not":   func(f map[string]string) { delete(f, parent.file(".pom")) },
		"there is no pom":     func(f map[string]string) { clear(f) },
	} {
		files := repository(t, newRelease(t))
		broken(files)
		if err := checkCentral(os.DirFS(on(t, files)), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the complaint is %v, not %q", err, want)
		}
	}
	dir := on(t, files)
	if err := write(filepath.Join(dir, client.file(".jar.sha1")), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkCentral(os.DirFS(dir), true); err == nil || !strings.Contains(err.Error(), "is not its checksum") || !strings.Contains(err.Error(), "is not signed") {
		t.Errorf("the complaint is %v", err)
	}
}

// signingKey makes a key of GnuPG, and returns its name and how to run GnuPG with it.
func signingKey(t *testing.T) (key string, gpg func(program string, args ...string)) {
	t.Helper()
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Fatal("no gpg; make test-deps installs it")
	}
	home, err := os.MkdirTemp("", "gpg") // short enough for the socket of its agent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	t.Setenv("GNUPGHOME", home)
	gpg = func(program string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(context.Background(), program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
	}
	const name = "release@a.example"
	gpg("gpg", "--batch", "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign")
	t.Cleanup(func() { gpg("gpgconf", "--kill", "all") })
	return name, gpg
}

// With a key, Central finds a signature beside each file, and it is one.
func TestSign(t *testing.T) {
	key, gpg := signingKey(t)
	r := newRelease(t)
	r.signKey = key
	dir := on(t, repository(t, r))
	bundle, err := r.bundle(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkBundle(bundle, true); err != nil {
		t.Error(err)
	}
	jar := filepath.Join(dir, coordinates{"io.github.locksidecar", "locksidecar-client", r.version}.file(".jar"))
	gpg("gpg", "--batch", "--verify", jar+".asc", jar)
}

// without leaves out an element of the project itself.
func without(pom, element string) string {
	return regexp.MustCompile(`(?ms)^  <`+element+`\b.*?</`+element+`>\n`).ReplaceAllString(pom, "")
}

// The module of the Go client has the packages of the client and nothing that needs a server or gRPC.
func TestGoSources(t *testing.T) {
	r := newRelease(t)
	dir := t.TempDir()
	if err := r.goSources(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"client.go", "internal/jsonlines/write.go", "api/locksidecar/v1/locksidecar.pb.go", "go.mod", "LICENSE", "README.md"} {
		if read(t, filepath.Join(dir, name)) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	imported := regexp.MustCompile(`"(github\.com/locksidecar/[^"]*|google\.golang\.org/grpc[^"]*)"`)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" {
			return err
		}
		if strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s is in it", name)
		}
		for _, m := range imported.FindAllStringSubmatch(read(t, name), -1) {
			if m[1] != goModule+"/internal/jsonlines" && m[1] != goModule+"/api/locksidecar/v1" {
				t.Errorf("%s imports %s", name, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A package is what deb(5) says, with the folders before what is in them.
func TestDeb(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb")
	}
	r := newRelease(t)
	files := []entry{{path: "usr/bin/locksidecar", mode: 0o755, content: []byte("odd")}, {path: "etc/default/locksidecar", mode: 0o644, content: []byte("x")}}
	told, err := r.debControl("arm64", files)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := r.pack(told, files)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "a.deb")
	if err := write(name, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "dpkg-deb", append(args, name)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if got := strings.TrimSpace(dpkg("--showformat=${Package} ${Version} ${Architecture}", "--show")); got != "locksidecar "+r.version+" arm64" {
		t.Errorf("it is %q", got)
	}
	want := regexp.MustCompile(`(?s)^drwxr-xr-x root/root.* \./\n.* \./etc/\n.* \./etc/default/\n-rw-r--r-- root/root.* \./etc/default/locksidecar\n.* \./usr/\n.* \./usr/bin/\n-rwxr-xr-x root/root.* \./usr/bin/locksidecar\n$`)
	if got := dpkg("--contents"); !want.MatchString(got) {
		t.Errorf("it has\n%s", got)
	}
}

func TestSums(t *testing.T) {
	r := newRelease(t)
	if err := write(r.file("a.txt"), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.txt\n"
	sums := func() {
		t.Helper()
		if err := r.sums(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := read(t, r.file(sumsFile)); got != want {
			t.Errorf("got %q", got)
		}
	}
	for range 2 { // the second time the sums are there already
		sums()
	}

	// With a key they are signed; a signature of older sums does not stay.
	key, gpg := signingKey(t)
	r.signKey = key
	for range 2 {
		sums()
		gpg("gpg", "--batch", "--verify", r.file(sumsFile+".asc"), r.file(sumsFile))
	}
	r.signKey = ""
	sums()
	if _, err := os.Stat(r.file(sumsFile + ".asc")); !os.IsNotExist(err) {
		t.Errorf("the old signature is there: %v", err)
	}
}

// The digest of the image is that of what its archive leads to.
func TestImageDigest(t *testing.T) {
	archive := func(files ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := 0; i < len(files); i += 2 {
			if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(files[i+1])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if got, err := imageDigest(archive("blobs/sha256/a", "{}", "index.json", `{"manifests": [{"digest": "sha256:abc"}]}`)); got != "sha256:abc" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range [][]byte{nil, archive("oci-layout", "{}"), archive("index.json", "{"), archive("index.json", `{"manifests": [{"digest": "a"}, {"digest": "b"}]}`)} {
		if got, err := imageDigest(bad); err == nil {
			t.Errorf("got %q of %q", got, bad)
		}
	}
}

// A part that nobody has is refused before anything is made.
func TestChosen(t *testing.T) {
	if _, err := chosen([]string{"python", "cobol"}); err == nil {
		t.Error("takes cobol")
	}
	if got, err := chosen([]string{"node"}); err != nil || len(got) != 1 || got[0].name != "node" {
		t.Errorf("got %v, %v", got, err)
	}
}

// The workflows call make, and only targets that there are.
func TestWorkflows(t *testing.T) {
	workflows, err := filepath.Glob(root + "/.github/workflows/*.yml")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	makefile := read(t, root+"/Makefile")
	for _, w := range workflows {
		calls := regexp.MustCompile(`(?m)(?:run:|-) make ([a-z0-9-]+)`).FindAllStringSubmatch(read(t, w), -1)
		if len(calls) == 0 {
			t.Errorf("%s does not call make", w)
		}
		for _, m := range calls {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s calls make %s, which is not there", w, m[1])
			}
		}
	}
}
