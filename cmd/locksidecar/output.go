package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// outputFlag chooses between a table for people and JSON for programs.
type outputFlag struct{ format string }

func addOutput(cmd *cobra.Command) *outputFlag {
	o := &outputFlag{}
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table, or json for programs")
	complete(cmd, "output", "table", "json")
	return o
}

func (o *outputFlag) json() (bool, error) {
	switch o.format {
	case "json":
		return true, nil
	case "table":
		return false, nil
	default:
		return false, usage("--output is %q: must be table or json", o.format)
	}
}

// marshalJSON gives a message of the API as proto3 JSON. protojson changes its
// white space from build to build on purpose, so it is made anew.
func marshalJSON(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("make JSON: %w", err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return nil, fmt.Errorf("make JSON: %w", err)
	}
	return b.Bytes(), nil
}

// writeJSON writes a message as one document over many lines.
func writeJSON(w io.Writer, m proto.Message) error {
	text, err := marshalJSON(m)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return fmt.Errorf("make JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err = w.Write(b.Bytes())
	return err
}

// writeJSONLine writes a message as one line.
func writeJSONLine(w io.Writer, m proto.Message) error {
	text, err := marshalJSON(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// newTable aligns cells that are parted by tabs.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// row writes the cells of one line.
func row(w io.Writer, cells ...string) {
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // tabwriter tells errors at Flush
}

// age says how long something has been, in the two largest units.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Millisecond:
		return "<1ms"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d < time.Minute:
		return two(d, time.Second, "s", 0, "")
	case d < time.Hour:
		return two(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return two(d, time.Hour, "h", time.Minute, "m")
	default:
		return two(d, day, "d", time.Hour, "h")
	}
}

func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	s := fmt.Sprintf("%d%s", d/large, largeName)
	if small > 0 && d%large >= small {
		s += fmt.Sprintf("%d%s", d%large/small, smallName)
	}
	return s
}

// orDash fills a cell that would be empty.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// pidCell is empty for a process that its sidecar cannot see.
func pidCell(pid int32) string {
	if pid == 0 {
		return "-"
	}
	return strconv.FormatInt(int64(pid), 10)
}

func fenceCell(fence int64) string {
	if fence == 0 {
		return "-"
	}
	return strconv.FormatInt(fence, 10)
}

// printable keeps what an app has chosen from disturbing the terminal or the
// table.
func printable(s string) string {
	q := strconv.Quote(s)
	if q[1:len(q)-1] == s {
		return s
	}
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
