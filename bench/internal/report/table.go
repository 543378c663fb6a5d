package report

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// Text is the report for people.
func (r *Report) Text() string {
	var b bytes.Buffer
	s := r.Setup
	fmt.Fprintf(&b, "locksidecar %s, %s\n%s, %d cores, Linux %s, %s\nload before %s, after %s\n",
		s.Sidecar, s.Began, s.CPU, s.Cores, s.Kernel, s.Go, s.LoadBefore, s.LoadAfter)
	if s.Quick {
		b.WriteString("a quick run: the numbers are rough\n")
	}
	for _, s := range r.Stores {
		fmt.Fprintf(&b, "\n=== %s: %s ===\n", strings.ToUpper(s.Words.Name), s.Server)
		s.pairsText(&b)
		for _, h := range s.Hot {
			s.hotText(&b, h)
		}
		s.contendersText(&b)
		s.killText(&b)
		s.idleText(&b)
		s.sessionsText(&b)
		s.scaleText(&b)
	}
	r.targetsText(&b)
	return b.String()
}

func (r *Store) pairsText(b *bytes.Buffer) {
	if len(r.Pairs) == 0 {
		return
	}
	fmt.Fprintf(b, "\nACQUIRE AND RELEASE, each caller on a resource of its own; median of %s, ± half the spread\n", plural(len(r.Pairs[0].Rounds), "round"))
	r.byCallers(b, []string{"pairs/s", "±", "p50 µs", "p99 µs"}, func(rounds []measure.Round) []string {
		rate := column(rounds, func(r measure.Round) float64 { return r.PerSecond })
		p50 := column(rounds, func(r measure.Round) float64 { return r.P50 })
		p99 := column(rounds, func(r measure.Round) float64 { return r.P99 })
		return []string{number(rate.Median), plusMinus(rate), number(p50.Median), number(p99.Median)}
	})
	name := r.Words.Name
	fmt.Fprintf(b, "\nPROCESSOR TIME OF A PAIR in µs: the calling app, the server between it and %s, %s\n", name, name)
	r.byCallers(b, []string{"app", "server", name, "sum"}, func(rounds []measure.Round) []string {
		var cells []string
		for _, of := range []func(measure.CPU) float64{
			func(c measure.CPU) float64 { return c.App },
			func(c measure.CPU) float64 { return c.Server },
			func(c measure.CPU) float64 { return c.Store },
			measure.CPU.Total,
		} {
			cells = append(cells, number(column(rounds, func(r measure.Round) float64 { return of(r.CPU) }).Median))
		}
		return cells
	})
}

// byCallers writes a table with a row for each subject and, for each number of
// callers, the columns of that name.
func (r *Store) byCallers(b *bytes.Buffer, columns []string, cells func([]measure.Round) []string) {
	var subjects []string
	var callers []int
	rounds := map[string]map[int][]measure.Round{}
	for _, p := range r.Pairs {
		subjects = appendNew(subjects, p.Subject)
		callers = appendNew(callers, p.Callers)
		if rounds[p.Subject] == nil {
			rounds[p.Subject] = map[int][]measure.Round{}
		}
		rounds[p.Subject][p.Callers] = p.Rounds
	}
	head, units := "", ""
	for _, c := range callers {
		head += "\t" + plural(c, "caller") + ":" + strings.Repeat("\t", len(columns)-1)
		units += "\t" + strings.Join(columns, "\t")
	}
	rows := []string{head, units}
	for _, s := range subjects {
		row := s
		for _, c := range callers {
			row += "\t" + strings.Join(cells(rounds[s][c]), "\t")
		}
		rows = append(rows, row)
	}
	table(b, rows)
}

func (r *Store) hotText(b *bytes.Buffer, h *Hot) {
	how := ""
	if h.How != "" {
		how = " " + h.How
	}
	fmt.Fprintf(b, "\nONE HOT LOCK%s, %d sidecars × %d callers; median of %s\n", strings.ToUpper(how), h.Sidecars, h.CallersPerSidecar, plural(len(h.Rounds), "round"))
	rate := column(h.Rounds, func(r HotRound) float64 { return r.PerSecond })
	rows := []string{
		"\tp50 µs\t±\tp99 µs",
		timesRow("release to the next grant", h.Rounds, func(r HotRound) measure.Times { return r.HandOff }),
		timesRow("only those to the other sidecar", h.Rounds, func(r HotRound) measure.Times { return r.Across }),
		timesRow("where each holds it for 1 ms", h.Rounds, func(r HotRound) measure.Times { return r.Held }),
	}
	if r.Words.Notified != "" {
		rows = append(rows, timesRow(r.Words.Notified, h.Rounds, func(r HotRound) measure.Times { return r.Notified }))
	}
	rows = append(rows, timesRow(r.Words.Answered, h.Rounds, func(r HotRound) measure.Times { return r.Answered }))
	table(b, rows)
	fmt.Fprintf(b, "%s pairs/s (%s)\n", number(rate.Median), plusMinus(rate))
}

func (r *Store) killText(b *bytes.Buffer) {
	for _, k := range []struct {
		what string
		*Kill
	}{{"HOLDER, to the grant at another sidecar", r.Kill}, {"LEADER'S PROCESS, to the next leader's at another sidecar", r.Lead}} {
		if k.Kill == nil {
			continue
		}
		fmt.Fprintf(b, "\nKILL -9 OF THE %s; %d times\np50 %s ms, p99 %s ms, worst %s ms\n",
			k.what, k.Repeats, number(k.Grant.P50/1000), number(k.Grant.P99/1000), number(k.Grant.Max/1000))
	}
}

func (r *Store) idleText(b *bytes.Buffer) {
	if r.Idle == nil {
		return
	}
	i := r.Idle
	fmt.Fprintf(b, "\nA SIDECAR WITH NOTHING TO DO, lease TTL %s s\n", number(i.LeaseTTL))
	row := func(name string, m Memory, unit float64) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", name, number(m.RSS/unit), number(m.Anonymous/unit), number(m.Heap/unit), number(m.Store/unit))
	}
	table(b, []string{
		"\tRSS\tanonymous\tGo heap\t" + r.Words.Memory,
		row("started, MiB", i.Start, mib),
		row("a session and no holds, MiB", i.Before, mib),
		row(fmt.Sprintf("%d holds, MiB", i.Holds), i.With, mib),
		row("per hold, bytes", i.PerHold, 1),
	})
	rows := []string{
		"\tits own count:\t\tof " + r.Words.Name + ":\t",
		fmt.Sprintf("to a heartbeat, over %s s\tits requests\tall requests\trequests\t%s", number(i.Window), r.Words.Steps),
	}
	for _, c := range i.CommandsAt {
		requests := "–"
		if c.Requests > 0 {
			requests = fmt.Sprintf("%.2f", c.Requests)
		}
		rows = append(rows, fmt.Sprintf("%d holds\t%.2f\t%.2f\t%s\t%.2f", c.Holds, c.Renewing, c.Sent, requests, c.Steps))
	}
	table(b, rows)
}

func (r *Report) targetsText(b *bytes.Buffer) {
	rows := []string{"\tmeasured\tagainst\tratio\tallowed\t"}
	for _, s := range r.Stores {
		rows = append(rows, s.targetRows()...)
	}
	if len(rows) == 1 {
		return
	}
	b.WriteString("\nTARGETS; the ratio is the median of the rounds and, in brackets, their range\n")
	table(b, rows)
}

func (r *Store) targetRows() []string {
	var rows []string
	for _, t := range r.Targets {
		sign, met := "≤", "met"
		if t.AtLeast {
			sign = "≥"
		}
		if !t.Met {
			met = "NOT MET"
		}
		ratio := fmt.Sprintf("%.2f", t.Ratio.Median)
		if t.Ratio.Min != t.Ratio.Max {
			ratio += fmt.Sprintf(" [%.2f–%.2f]", t.Ratio.Min, t.Ratio.Max)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s %s\t%s %s\t%s\t%s %.2f\t%s",
			r.Words.Name+", "+t.Name, number(t.Measured), t.Unit, number(t.Against), t.Unit, ratio, sign, t.Factor, met))
	}
	return rows
}

const mib = 1 << 20

// table aligns rows of tab-separated cells: the first to the left, the others to the right.
func table(b *bytes.Buffer, rows []string) {
	width := 0
	for _, r := range rows {
		name, _, _ := strings.Cut(r, "\t")
		width = max(width, len([]rune(name)))
	}
	var aligned bytes.Buffer
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		_, cells, _ := strings.Cut(r, "\t")
		_, _ = fmt.Fprintf(w, "%s\t\n", cells)
	}
	_ = w.Flush() // into memory: cannot fail
	for i, line := range strings.Split(strings.TrimSuffix(aligned.String(), "\n"), "\n") {
		name, _, _ := strings.Cut(rows[i], "\t")
		b.WriteString(strings.TrimRight(name+strings.Repeat(" ", width-len([]rune(name)))+line, " ") + "\n")
	}
}

func timesRow(name string, rounds []HotRound, times func(HotRound) measure.Times) string {
	p50 := column(rounds, func(r HotRound) float64 { return times(r).P50 })
	p99 := column(rounds, func(r HotRound) float64 { return times(r).P99 })
	return fmt.Sprintf("%s\t%s\t%s\t%s", name, number(p50.Median), plusMinus(p50), number(p99.Median))
}

func column[R any](rounds []R, f func(R) float64) measure.Spread {
	return measure.SpreadOf(measure.Column(rounds, f))
}

// plusMinus is half the distance of the best and the worst round, in percent of the median.
func plusMinus(s measure.Spread) string {
	if s.Median == 0 {
		return "±0%"
	}
	return fmt.Sprintf("±%.0f%%", 50*(s.Max-s.Min)/s.Median)
}

// number writes three significant digits, or all before the point.
func number(x float64) string {
	switch a := math.Abs(x); {
	case a >= 100 || a == 0:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	default:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func appendNew[T comparable](s []T, v T) []T {
	for _, have := range s {
		if have == v {
			return s
		}
	}
	return append(s, v)
}
