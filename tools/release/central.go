package main

import (
	"crypto/md5"  //nolint:gosec // a checksum that Central asks for
	"crypto/sha1" //nolint:gosec // the same
	"encoding/xml"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"path"
	"strings"
)

// pom is what Maven Central asks for in a pom: https://central.sonatype.org/publish/requirements/.
type pom struct {
	Parent      *coordinates `xml:"parent"`
	GroupID     string       `xml:"groupId"`
	ArtifactID  string       `xml:"artifactId"`
	Version     string       `xml:"version"`
	Packaging   string       `xml:"packaging"`
	Name        string       `xml:"name"`
	Description string       `xml:"description"`
	URL         string       `xml:"url"`
	Licenses    []struct {
		Name string `xml:"name"`
		URL  string `xml:"url"`
	} `xml:"licenses>license"`
	Developers []struct {
		Name         string `xml:"name"`
		Organization string `xml:"organization"`
	} `xml:"developers>developer"`
	SCM struct {
		Connection          string `xml:"connection"`
		DeveloperConnection string `xml:"developerConnection"`
		URL                 string `xml:"url"`
	} `xml:"scm"`
}

type coordinates struct {
	GroupID    string `xml:"groupId"`
	ArtifactID string `xml:"artifactId"`
	Version    string `xml:"version"`
}

// file is where a repository has something of an artifact.
func (c coordinates) file(suffix string) string {
	return path.Join(strings.ReplaceAll(c.GroupID, ".", "/"), c.ArtifactID, c.Version, c.ArtifactID+"-"+c.Version+suffix)
}

// checkCentral says what Maven Central would refuse in a repository of files.
func checkCentral(repository fs.FS, signed bool) error {
	var problems []error
	found := 0
	err := fs.WalkDir(repository, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch path.Ext(name) {
		case ".md5", ".sha1", ".sha256", ".sha512", ".asc":
			return nil
		case ".pom":
			found++
			problems = append(problems, checkPom(repository, name)...)
		}
		problems = append(problems, checkSums(repository, name)...)
		if signed && !there(repository, name+".asc") {
			problems = append(problems, fmt.Errorf("%s is not signed", name))
		}
		return nil
	})
	if found == 0 {
		problems = append(problems, errors.New("there is no pom"))
	}
	return errors.Join(append(problems, err)...)
}

func there(repository fs.FS, name string) bool {
	_, err := fs.Stat(repository, name)
	return err == nil
}

func checkSums(repository fs.FS, name string) []error {
	content, err := fs.ReadFile(repository, name)
	if err != nil {
		return []error{err}
	}
	var problems []error
	for suffix, h := range map[string]hash.Hash{".md5": md5.New(), ".sha1": sha1.New()} { //nolint:gosec // see above
		sum, err := fs.ReadFile(repository, name+suffix)
		_, _ = h.Write(content) // a hash takes everything
		if want := fmt.Sprintf("%x", h.Sum(nil)); err != nil || strings.TrimSpace(string(sum)) != want {
			problems = append(problems, fmt.Errorf("%s%s is not its checksum", name, suffix))
		}
	}
	return problems
}

func readPom(repository fs.FS, name string) (p pom, err error) {
	text, err := fs.ReadFile(repository, name)
	if err != nil {
		return p, err
	}
	if err := xml.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("read %s: %w", name, err)
	}
	return p, nil
}

// checkPom says what is missing in a pom with its parent, and beside it.
func checkPom(repository fs.FS, name string) []error {
	p, err := readPom(repository, name)
	if err != nil {
		return []error{err}
	}
	if p.Parent != nil {
		parent, err := readPom(repository, p.Parent.file(".pom"))
		if err != nil {
			return []error{fmt.Errorf("%s: its parent is not in the bundle: %w", name, err)}
		}
		p.inherit(parent)
	}
	var problems []error
	need := func(ok bool, what string) {
		if !ok {
			problems = append(problems, fmt.Errorf("%s: %s", name, what))
		}
	}
	c := coordinates{p.GroupID, p.ArtifactID, p.Version}
	need(name == c.file(".pom"), "is at another place than its coordinates say")
	need(p.Version != "" && !strings.HasSuffix(p.Version, "-SNAPSHOT"), "has no version of a release")
	need(p.Name != "", "has no name")
	need(p.Description != "", "has no description")
	need(strings.HasPrefix(p.URL, "https://"), "has no URL")
	need(len(p.Licenses) > 0, "has no licence")
	for _, l := range p.Licenses {
		need(l.Name != "" && l.URL != "", "has a licence without name or URL")
	}
	need(len(p.Developers) > 0, "has no developers")
	for _, d := range p.Developers {
		need(d.Name != "" && d.Organization != "", "has a developer without name or organization")
	}
	need(p.SCM.Connection != "" && p.SCM.DeveloperConnection != "" && p.SCM.URL != "", "does not say where its sources are")
	if p.Packaging != "pom" {
		for _, suffix := range []string{".jar", "-sources.jar", "-javadoc.jar"} {
			need(there(repository, c.file(suffix)), "has no "+suffix+" beside it")
		}
	}
	return problems
}

// inherit takes from the parent what Maven takes from it. A name is never inherited.
func (p *pom) inherit(parent pom) {
	if p.GroupID == "" {
		p.GroupID = parent.GroupID
	}
	if p.Version == "" {
		p.Version = parent.Version
	}
	if p.Description == "" {
		p.Description = parent.Description
	}
	if p.URL == "" {
		p.URL = parent.URL
	}
	if p.Licenses == nil {
		p.Licenses = parent.Licenses
	}
	if p.Developers == nil {
		p.Developers = parent.Developers
	}
	if p.SCM.URL == "" {
		p.SCM = parent.SCM
	}
}
