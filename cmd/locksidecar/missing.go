package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/locksidecar/locksidecar/client"
)

// missingHelp says what becomes of a list while shards are away.
const missingHelp = `Where shards of the store do not answer, it shows what the others have, names those on
stderr, in JSON as missingShards, and ends with exit status 69.`

// lacking notes the shards that a list lacks, and passes all other errors on.
func lacking(err error, missing *[]string) error {
	var lacks *client.IncompleteError
	if !errors.As(err, &lacks) {
		return err
	}
	*missing = lacks.Missing
	return nil
}

// allBut is how a command ends that has shown what there is but at the missing shards.
func allBut(missing []string, err error) error {
	if err != nil || len(missing) == 0 {
		return err
	}
	return &exitError{code: exitUnavailable, err: errors.New("this is not all: " + doNotAnswer(missing))}
}

func doNotAnswer(missing []string) string {
	names := make([]string, len(missing))
	for i, name := range missing {
		names[i] = printable(name)
	}
	return fmt.Sprintf("these shards of the store do not answer: %s", strings.Join(names, ", "))
}

// writeMissing says which shards a watch cannot see.
func writeMissing(w io.Writer, command string, missing []string) error {
	said := "all shards of the store answer again"
	if len(missing) > 0 {
		said = doNotAnswer(missing) + "; what they have stays as it was seen last"
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", command, said)
	return err
}
