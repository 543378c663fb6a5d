// Command pack makes the archive of a chart, as `helm package` does, and prints its path.
//
//	go run ./pack CHART FOLDER
package main

import (
	"errors"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack CHART FOLDER")
		os.Exit(2)
	}
	name, err := pack(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Println(name)
}

func pack(chart, folder string) (string, error) {
	c, err := loader.Load(chart)
	if err != nil {
		return "", fmt.Errorf("load the chart: %w", err)
	}
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("check the chart: %w", err)
	}
	if len(c.Metadata.Dependencies) != len(c.Dependencies()) {
		return "", errors.New("the chart lacks charts that it depends on")
	}
	name, err := chartutil.Save(c, folder)
	if err != nil {
		return "", fmt.Errorf("write the archive: %w", err)
	}
	return name, nil
}
