// Command pack makes the archive of a chart, as `helm package` does, and prints its path.
//
//	go run ./pack [-changes CHANGELOG] [-sign KEY] [-as NAME] CHART FOLDER
//
// From a changelog it takes what Artifact Hub shows of this version's changes.
// With a key of GnuPG it also writes the provenance, by which `helm verify` and `helm install
// --verify` know who has made the archive.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/provenance"
	"sigs.k8s.io/yaml"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	key := flag.String("sign", "", "key of GnuPG that signs the provenance; empty: there is none")
	as := flag.String("as", "", "another name under which the archive will be given away")
	changelog := flag.String("changes", "", "changelog with the changes of the chart; empty: the archive names none")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: pack [-changes CHANGELOG] [-sign KEY] [-as NAME] CHART FOLDER")
		os.Exit(2)
	}
	name, err := pack(flag.Arg(0), flag.Arg(1), *changelog)
	if err == nil && *key != "" {
		err = sign(ctx, name, *key, *as)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Println(name)
}

func pack(place, folder, changelog string) (string, error) {
	c, err := loader.Load(place)
	if err != nil {
		return "", fmt.Errorf("load the chart: %w", err)
	}
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("check the chart: %w", err)
	}
	if len(c.Metadata.Dependencies) != len(c.Dependencies()) {
		return "", errors.New("the chart lacks charts that it depends on")
	}
	if changelog != "" {
		if err := tellChanges(c.Metadata, changelog); err != nil {
			return "", err
		}
	}
	name, err := chartutil.Save(c, folder)
	if err != nil {
		return "", fmt.Errorf("write the archive: %w", err)
	}
	return name, nil
}

// tellChanges adds what Artifact Hub shows of the changes.
func tellChanges(about *chart.Metadata, changelog string) error {
	text, err := os.ReadFile(changelog) //nolint:gosec // whoever starts it names the changelog
	if err != nil {
		return fmt.Errorf("read the changelog: %w", err)
	}
	changes, err := annotation(string(text), about.Version, about.Home)
	if err != nil || changes == "" {
		return err
	}
	if about.Annotations == nil {
		about.Annotations = map[string]string{}
	}
	about.Annotations["artifacthub.io/changes"] = changes
	return nil
}

// sign writes the provenance of an archive beside it: what Helm's own signing writes, but GnuPG
// keeps the key. Helm looks for the archive's checksum by the name that the file has: registries
// call it by the chart's name and version, and we may give it away as something else.
func sign(ctx context.Context, archive, key, as string) error {
	c, err := loader.LoadFile(archive)
	if err != nil {
		return fmt.Errorf("load the archive: %w", err)
	}
	sum, err := provenance.DigestFile(archive)
	if err != nil {
		return fmt.Errorf("sum the archive: %w", err)
	}
	sums := provenance.SumCollection{Files: map[string]string{filepath.Base(archive): "sha256:" + sum}}
	if as != "" {
		sums.Files[as] = "sha256:" + sum
	}
	metadata, err := yaml.Marshal(c.Metadata)
	if err != nil {
		return fmt.Errorf("write the chart's metadata: %w", err)
	}
	files, err := yaml.Marshal(sums)
	if err != nil {
		return fmt.Errorf("write the checksums: %w", err)
	}
	message := bytes.Join([][]byte{metadata, files}, []byte("\n...\n"))
	gpg := exec.CommandContext(ctx, "gpg", "--batch", "--yes", "--local-user", key, "--clearsign", "--output", archive+".prov") //nolint:gosec // the key's name is for whoever releases to say
	gpg.Stdin, gpg.Stderr = bytes.NewReader(message), os.Stderr
	if err := gpg.Run(); err != nil {
		return fmt.Errorf("sign with the key %s: %w", key, err)
	}
	return nil
}
