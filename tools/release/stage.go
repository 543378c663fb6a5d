package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// staged copies the files of a folder of the repository that git knows or would take, so that
// a build leaves nothing in the repository and takes nothing from it that was built before.
// READMEs are made fit to be read elsewhere. It returns the copy.
func (r *release) staged(ctx context.Context, folder string) (string, error) {
	list, err := r.output(ctx, r.root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder)
	if err != nil {
		return "", err
	}
	found := false
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join(r.root, name))
		if err != nil || !info.Mode().IsRegular() { // removed, and not committed yet
			continue
		}
		found = true
		text, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return "", err
		}
		if path.Base(name) == "README.md" {
			text = []byte(outside(string(text), path.Dir(name), "v"+r.version, r.isDir))
		}
		if err := write(filepath.Join(r.stage, name), text, info.Mode().Perm()); err != nil {
			return "", err
		}
	}
	if !found {
		return "", fmt.Errorf("git knows no files in %s", folder)
	}
	return filepath.Join(r.stage, folder), nil
}

func (r *release) isDir(name string) bool {
	info, err := os.Stat(filepath.Join(r.root, name))
	return err == nil && info.IsDir()
}

// license copies the repository's LICENSE to a path.
func (r *release) license(to string) error {
	text, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	return write(to, text, 0o644)
}

// write makes a file and its folders.
func write(name string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, mode)
}

var (
	fenced   = regexp.MustCompile("^ *```")
	relative = regexp.MustCompile(`(\]\()([^)\s#:]+)(#[^)\s]*)?\)`)
	mark     = regexp.MustCompile(`^ *<!-- docs-test: .*-->$`)
)

// outside makes a page of a folder readable where the repository is not: its links lead to
// the repository at a tag, and marks for our own tests are left out.
func outside(text, folder, tag string, isDir func(string) bool) string {
	var b strings.Builder
	inCode := false
	for line := range strings.Lines(text) {
		if fenced.MatchString(strings.TrimSuffix(line, "\n")) {
			inCode = !inCode
		}
		switch {
		case inCode:
		case mark.MatchString(strings.TrimSuffix(line, "\n")):
			continue
		default:
			line = relative.ReplaceAllStringFunc(line, func(link string) string {
				m := relative.FindStringSubmatch(link)
				target := path.Join(folder, m[2])
				kind := "blob"
				if isDir(target) {
					kind = "tree"
				}
				return fmt.Sprintf("%s%s/%s/%s/%s%s)", m[1], url, kind, tag, target, m[3])
			})
		}
		b.WriteString(line)
	}
	return b.String()
}
