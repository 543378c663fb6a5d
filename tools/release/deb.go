package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5" //nolint:gosec // the form of the file md5sums
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// control is the description of the Debian package. The program needs no library; what is
// named makes the service and its user.
const control = `Package: locksidecar
Version: %s
Architecture: %s
Maintainer: %s
Installed-Size: %d
Depends: init-system-helpers (>= 1.54~), systemd | systemd-standalone-sysusers | systemd-sysusers
Section: net
Priority: optional
Homepage: %s
Description: distributed locks for any app, through a small process beside it
 locksidecar is a process beside an app, which talks to it over a Unix socket.
 It has locks in Redis, ZooKeeper, PostgreSQL, MySQL or MariaDB, or for the apps
 of one host in its memory. It keeps a lock alive, hands out fencing tokens,
 tells the app when a lock is lost, and releases everything when the app dies.
 .
 The package starts it as a service. Settings are in /etc/default/locksidecar.
`

// debMaintainer is the maintainer with an address, which Debian wants.
const debMaintainer = maintainer + " <locksidecar@users.noreply.github.com>"

// deb makes the Debian packages.
func (r *release) deb(ctx context.Context) error {
	for _, arch := range archs {
		files, err := r.debFiles(ctx, arch)
		if err != nil {
			return err
		}
		scripts, err := r.debControl(arch, files)
		if err != nil {
			return err
		}
		packed, err := r.pack(scripts, files)
		if err != nil {
			return err
		}
		if err := write(r.file("locksidecar_%s_%s.deb", r.version, arch), packed, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// debFiles are what the package installs.
func (r *release) debFiles(ctx context.Context, arch string) ([]entry, error) {
	binary, err := r.binary(arch)
	if err != nil {
		return nil, err
	}
	used, err := r.modules(ctx, binary, arch)
	if err != nil {
		return nil, err
	}
	pages, err := r.pages(ctx)
	if err != nil {
		return nil, err
	}
	var files []entry
	for from, to := range map[string]string{
		binary:                               "usr/bin/locksidecar",
		"deploy/systemd/locksidecar.service": "usr/lib/systemd/system/locksidecar.service",
		"deploy/systemd/sysusers.conf":       "usr/lib/sysusers.d/locksidecar.conf",
		"deploy/debian/default":              "etc/default/locksidecar",
		"deploy/debian/copyright":            "usr/share/doc/locksidecar/copyright",
		"deploy/debian/lintian-overrides":    "usr/share/lintian/overrides/locksidecar",
	} {
		if !filepath.IsAbs(from) {
			from = filepath.Join(r.root, from)
		}
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		f := entry{path: to, mode: 0o644, content: content}
		if path.Dir(to) == "usr/bin" {
			f.mode = 0o755
		}
		files = append(files, f)
	}
	history := fmt.Sprintf("locksidecar (%s) unstable; urgency=medium\n\n  * What changes:\n    %s\n\n -- %s  %s\n",
		r.version, url+"/blob/v"+r.version+"/CHANGELOG.md", debMaintainer, r.created.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	packed := []entry{
		{path: "usr/share/doc/locksidecar/changelog", content: []byte(history)},
		{path: "usr/share/doc/locksidecar/THIRD_PARTY_LICENSES", content: notices(used)},
	}
	folders := map[string]string{
		"man":              "usr/share/man/man1",
		"completions/bash": "usr/share/bash-completion/completions",
		"completions/fish": "usr/share/fish/vendor_completions.d",
		"completions/zsh":  "usr/share/zsh/vendor-completions",
	}
	for _, p := range pages {
		p.path, p.mode = path.Join(folders[path.Dir(p.path)], path.Base(p.path)), 0o644
		if path.Ext(p.path) == ".1" {
			packed = append(packed, p)
		} else {
			files = append(files, p)
		}
	}
	for _, f := range packed {
		content, err := compressed(f.content)
		if err != nil {
			return nil, err
		}
		files = append(files, entry{path: f.path + ".gz", mode: 0o644, content: content})
	}
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return files, nil
}

// debControl are the files that tell dpkg about the package.
func (r *release) debControl(arch string, files []entry) ([]entry, error) {
	size, sums := 0, ""
	for _, f := range files {
		size += (len(f.content) + 1023) / 1024
		sums += fmt.Sprintf("%x  %s\n", md5.Sum(f.content), f.path) //nolint:gosec // see above
	}
	told := []entry{
		{path: "control", mode: 0o644, content: fmt.Appendf(nil, control, r.version, arch, debMaintainer, size, url)},
		{path: "md5sums", mode: 0o644, content: []byte(sums)},
		{path: "conffiles", mode: 0o644, content: []byte("/etc/default/locksidecar\n")},
	}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		script, err := os.ReadFile(filepath.Join(r.root, "deploy", "debian", name))
		if err != nil {
			return nil, err
		}
		told = append(told, entry{path: name, mode: 0o755, content: script})
	}
	return told, nil
}

// pack makes a package of its two parts, as deb(5) has it.
func (r *release) pack(told, files []entry) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	member := func(name string, content []byte) {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, r.created.Unix(), 0, 0, "100644", len(content))
		b.Write(content)
		if len(content)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	member("debian-binary", []byte("2.0\n"))
	for _, part := range []struct {
		name  string
		files []entry
	}{{"control.tar.gz", told}, {"data.tar.gz", files}} {
		archive, err := tarball(withFolders(part.files), r.created)
		if err != nil {
			return nil, err
		}
		member(part.name, archive)
	}
	return b.Bytes(), nil
}

// withFolders sorts files and adds the folders above them, as dpkg wants them.
func withFolders(files []entry) []entry {
	all := map[string]entry{"./": {path: "./", mode: 0o755}}
	for _, f := range files {
		f.path = "./" + f.path
		all[f.path] = f
		for dir := path.Dir(f.path); dir != "."; dir = path.Dir(dir) {
			all["./"+dir+"/"] = entry{path: "./" + dir + "/", mode: 0o755}
		}
	}
	var sorted []entry
	for _, f := range all {
		sorted = append(sorted, f)
	}
	slices.SortFunc(sorted, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return sorted
}

// compressed is how Debian keeps pages: without a time.
func compressed(text []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
