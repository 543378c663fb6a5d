package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// change is what Artifact Hub shows of one change of a chart:
// https://artifacthub.io/docs/topics/annotations/helm/
type change struct {
	Kind        string `json:"kind"`
	Description string `json:"description"`
	Links       []link `json:"links,omitempty"`
}

type link struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// kinds are all that Artifact Hub knows: the headings of "Keep a Changelog".
var kinds = []string{"added", "changed", "deprecated", "removed", "fixed", "security"}

var (
	ofTheChart = regexp.MustCompile(`^(?:\*\*Breaking:\*\* )?(?:[Aa] |[Tt]he )?Helm chart\b`)
	itsName    = regexp.MustCompile(`^(Breaking: )?Helm chart: `)
	aLink      = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
)

// annotation is the value of artifacthub.io/changes for a version: the entries of the changelog
// that are of the chart, because they begin with "Helm chart". It is empty when there is none.
func annotation(changelog, version, home string) (string, error) {
	text, err := section(changelog, version)
	if err != nil {
		return "", err
	}
	var all []change
	for heading, entry := range entries(text) {
		if !ofTheChart.MatchString(entry) {
			continue
		}
		kind := strings.ToLower(heading)
		if !slices.Contains(kinds, kind) {
			return "", fmt.Errorf("the changelog has an entry of the chart under %q, which is none of %v", heading, kinds)
		}
		all = append(all, describe(kind, entry, home+"/blob/v"+version+"/"))
	}
	if len(all) == 0 {
		return "", nil
	}
	out, err := yaml.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("write the changes: %w", err)
	}
	return string(out), nil
}

// section is the part of a version, or, where it is not released yet, what is unreleased.
func section(changelog, version string) (string, error) {
	for _, name := range []string{version, "Unreleased"} {
		heading := regexp.MustCompile(`(?m)^## \[?` + regexp.QuoteMeta(name) + `(?:[\], ].*)?$`)
		if at := heading.FindStringIndex(changelog); at != nil {
			text, _, _ := strings.Cut(changelog[at[1]:], "\n## ")
			return text, nil
		}
	}
	return "", fmt.Errorf("the changelog has neither %s nor Unreleased", version)
}

// entries gives each entry as one line, and the heading above it.
func entries(text string) func(yield func(heading, entry string) bool) {
	return func(yield func(heading, entry string) bool) {
		var heading, entry string
		more := func() bool { return entry == "" || yield(heading, entry) }
		for line := range strings.SplitSeq(text, "\n") {
			switch {
			case strings.HasPrefix(line, "  ") && entry != "":
				entry += " " + strings.TrimSpace(line)
				continue
			case !more():
				return
			}
			entry = ""
			if after, ok := strings.CutPrefix(line, "### "); ok {
				heading = after
			} else if after, ok := strings.CutPrefix(line, "- "); ok {
				entry = after
			}
		}
		more()
	}
}

// describe makes an entry of the changelog one of Artifact Hub: as plain text, with its links
// beside it.
func describe(kind, entry, pages string) change {
	c := change{Kind: kind}
	for _, m := range aLink.FindAllStringSubmatch(entry, -1) {
		url := m[2]
		if !strings.Contains(url, "://") {
			url = pages + url
		}
		c.Links = append(c.Links, link{Name: m[1], URL: url})
	}
	text := strings.ReplaceAll(aLink.ReplaceAllString(entry, "$1"), "**", "")
	c.Description = itsName.ReplaceAllString(text, "$1")
	return c
}
