package report

import (
	"bytes"
	"fmt"
)

func (r *Store) contendersText(b *bytes.Buffer) {
	c := r.Contenders
	if c == nil {
		return
	}
	fmt.Fprintf(b, "\n%d CONTENDERS OF ONE LOCK for %s s, each holds it for %s ms: how long they wait\n", c.Workers, number(c.Seconds), number(c.Hold))
	rows := []string{"\tholds/s\tmean ms\tp50 ms\tp95 ms\tworst ms"}
	for _, w := range c.Rows {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", w.Subject,
			number(w.PerSecond), number(w.Mean/1e3), number(w.P50/1e3), number(w.P95/1e3), number(w.Max/1e3)))
	}
	table(b, rows)
}

func (r *Store) sessionsText(b *bytes.Buffer) {
	s := r.Sessions
	if s == nil {
		return
	}
	fmt.Fprintf(b, "\nIDLE APP SESSIONS, a connection each\n")
	row := func(name string, m Memory) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s", name, number(m.RSS/mib), number(m.Anonymous/mib), number(m.Heap/mib))
	}
	table(b, []string{
		"\tRSS\tanonymous\tGo heap",
		row("one, after first use, MiB", s.Used),
		row(fmt.Sprintf("%d, MiB", s.Sessions), s.With),
	})
	fmt.Fprintf(b, "a fresh binary: exec to the first grant p50 %s ms, worst %s ms\n", number(s.FirstGrant.P50/1e3), number(s.FirstGrant.Max/1e3))
}

func (r *Store) scaleText(b *bytes.Buffer) {
	s := r.Scale
	if s == nil {
		return
	}
	fmt.Fprintf(b, "\nTHE LEASES OF %d SIDECARS, TTL %s s: what reaches %s in a second\n", s.Leases, number(s.LeaseTTL), r.Words.Name)
	rows := []string{"\trequests\t" + r.Words.Steps + "\tprocessors"}
	for _, l := range s.Loads {
		requests := "–"
		if l.Requests > 0 {
			requests = number(l.Requests)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s", l.What, requests, number(l.Steps), number(l.CPU)))
	}
	table(b, rows)
}
