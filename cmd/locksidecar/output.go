package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

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
// white space from build to build on purpose, so it is compacted.
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

// table aligns the cells of lines that follow each other. A line of less than two
// cells parts what is above from what is below.
type table struct {
	w    io.Writer
	rows [][]string
}

func newTable(w io.Writer) *table { return &table{w: w} }

// row adds the cells of one line.
func row(t *table, cells ...string) { t.rows = append(t.rows, cells) }

// Flush writes the lines.
func (t *table) Flush() error {
	var text strings.Builder
	for rest := t.rows; len(rest) > 0; {
		n := max(1, slices.IndexFunc(append(rest[:len(rest):len(rest)], nil), func(r []string) bool { return len(r) < 2 }))
		var widths []int
		for _, r := range rest[:n] {
			for i, cell := range r {
				if i == len(widths) {
					widths = append(widths, 0)
				}
				widths[i] = max(widths[i], width(cell))
			}
		}
		for _, r := range rest[:n] {
			for i, cell := range r {
				text.WriteString(cell)
				if i < len(r)-1 {
					text.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
				}
			}
			text.WriteByte('\n')
		}
		rest = rest[n:]
	}
	t.rows = nil
	_, err := io.WriteString(t.w, text.String())
	return err
}

// width is how many columns of a terminal a text takes.
func width(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul),
			r >= 0x3000 && r <= 0x303e, r >= 0xff01 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff:
			n += 2
		default:
			n++
		}
	}
	return n
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
