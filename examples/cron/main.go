// The program cron plays cron on several nodes, which all have the same line.
//
//	cron --store redis://127.0.0.1:6379 [--nodes 4] [--ticks 8] [--skew 900ms]
//
// The nodes' clocks differ, so each runs the line at another moment, and the job may be over when the
// next node comes. One job hangs, one fails, and one node is killed with its sidecar at
// work. In the end cron reads what the jobs have written. Its status is 0 if the job was done once at each tick.
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/examples/stage"
)

// line is what stands in the crontab of each node, behind the times. In a crontab there is
// $(date +\%FT\%H:\%M) in place of $TICK: the tick by the node's own clock.
const line = `locksidecar once --wait 1m --max-hold 2s --attempts 5 --keep 2d "reports/$TICK" -- sh job.sh`

//go:embed job.sh
var job []byte

// What goes wrong, and at which tick. At the others nothing does.
const (
	killed = 2
	fails  = 3
	hangs  = 4
	least  = 4 // ticks
)

type options struct {
	store        string
	nodes, ticks int
	skew, period time.Duration
	limit        time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var o options
	flag.StringVar(&o.store, "store", "", "URL of the `store`, which all nodes can reach")
	flag.IntVar(&o.nodes, "nodes", 4, "how many there are")
	flag.IntVar(&o.ticks, "ticks", 8, "how often the job is due, 4 times at least")
	flag.DurationVar(&o.skew, "skew", 900*time.Millisecond, "how much the clock of the last node is behind that of the first")
	flag.DurationVar(&o.period, "period", time.Second, "the time between two ticks")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "give up after this time")
	flag.Parse()
	err := play(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cron: %v\n", err)
		os.Exit(1)
	}
}

// cluster is all that runs.
type cluster struct {
	options
	stage   *stage.Stage
	journal string

	mu        sync.Mutex
	sidecars  []*stage.Process
	running   map[run]*stage.Process
	wasKilled chan struct{} // closed when the node is back; so nothing else of it was killed
}

// run is the line on one node at one tick.
type run struct{ node, tick int }

func play(ctx context.Context, o options) (err error) {
	if o.nodes < 2 || o.ticks < least {
		return fmt.Errorf("%d nodes and %d ticks: at least 2 and %d are needed", o.nodes, o.ticks, least)
	}
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	c := &cluster{options: o, sidecars: make([]*stage.Process, o.nodes), running: map[run]*stage.Process{}, wasKilled: make(chan struct{})}
	if c.stage, err = stage.Open(ctx, o.store, "cron-"+rand.Text()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stage.Close()) }()
	c.journal = filepath.Join(c.stage.Dir, "journal")
	for path, text := range map[string][]byte{c.journal: nil, filepath.Join(c.stage.Dir, "job.sh"): job} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
	}
	defer c.end()
	for i := range c.sidecars {
		if c.sidecars[i], err = c.stage.Sidecar(name(i)); err != nil {
			return err
		}
	}
	fmt.Printf("each of %d nodes:  %s\n\n", o.nodes, line)
	nodes := make(chan error)
	first := time.Now().Add(o.period)
	for i := range o.nodes {
		go func() { nodes <- c.node(ctx, i, first) }()
	}
	err = c.killWhoIsAtWork(ctx)
	close(c.wasKilled)
	for range o.nodes {
		err = errors.Join(err, <-nodes)
	}
	if err != nil {
		return err
	}
	return c.verdict()
}

func name(node int) string { return fmt.Sprintf("node-%d", node+1) }

// end ends the sidecars. Lines that still ran would end with them.
func (c *cluster) end() {
	for _, p := range c.sidecars {
		if p != nil {
			p.Stop()
		}
	}
}

// node runs the line at each tick of its own clock, and returns when all have ended.
func (c *cluster) node(ctx context.Context, i int, first time.Time) (err error) {
	binary, err := stage.Binary()
	if err != nil {
		return err
	}
	behind := c.skew * time.Duration(i) / time.Duration(c.nodes-1)
	var all []*stage.Process
	for tick := 1; tick <= c.ticks; tick++ {
		if tick > killed {
			<-c.wasKilled
		}
		select {
		case <-time.After(time.Until(first.Add(time.Duration(tick-1)*c.period + behind))):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			break
		}
		p, failed := c.stage.Start([]string{
			"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "LOCKSIDECAR_SOCKET=" + c.stage.Socket(name(i)),
			fmt.Sprint("TICK=", tick), "NODE=" + name(i), "JOURNAL=" + c.journal,
			fmt.Sprint("HANGS=", hangs), fmt.Sprint("FAILS=", fails), fmt.Sprint("KILLED=", killed),
		}, "sh", "-c", "cd "+c.stage.Dir+" && exec "+line+" 2>/dev/null")
		if failed != nil {
			err = failed
			break
		}
		all = append(all, p)
		c.mu.Lock()
		c.running[run{i, tick}] = p
		c.mu.Unlock()
	}
	for _, p := range all {
		p.Status()
	}
	return err
}

// killWhoIsAtWork kills the node that does the job of one tick, and brings its sidecar back.
func (c *cluster) killWhoIsAtWork(ctx context.Context) error {
	for {
		began, err := c.read("began", killed)
		if err != nil {
			return err
		}
		for i := range c.nodes {
			if len(began) == 0 || began[0].node != name(i) {
				continue
			}
			c.sidecars[i].Kill()
			c.mu.Lock()
			p := c.running[run{i, killed}]
			c.mu.Unlock()
			if p != nil {
				p.Kill()
			}
			c.sidecars[i], err = c.stage.Sidecar(name(i))
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// entry is what a job has written.
type entry struct{ node, previous string }

// read gives what was written of one kind at a tick.
func (c *cluster) read(kind string, tick int) (all []entry, err error) {
	text, err := os.ReadFile(c.journal)
	if err != nil {
		return nil, err
	}
	for l := range strings.Lines(string(text)) {
		f := strings.Fields(l)
		if len(f) == 4 && f[0] == kind && f[1] == fmt.Sprint(tick) {
			all = append(all, entry{f[2], f[3]})
		}
	}
	return all, nil
}

// verdict says what was proven.
func (c *cluster) verdict() error {
	var wrong []error
	next := map[int]string{} // who has taken over
	for tick := 1; tick <= c.ticks; tick++ {
		began, err := c.read("began", tick)
		if err != nil {
			return err
		}
		done, err := c.read("done", tick)
		if err != nil {
			return err
		}
		fmt.Printf("tick %d: started by %v, done by %v\n", tick, nodes(began), nodes(done))
		if len(done) != 1 {
			wrong = append(wrong, fmt.Errorf("tick %d was done %d times", tick, len(done)))
			continue
		}
		next[tick] = done[0].node
		if (tick == killed || tick == fails || tick == hangs) && (len(began) < 2 || began[1].previous == "none") {
			wrong = append(wrong, fmt.Errorf("tick %d was not taken over: %v", tick, began))
		}
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	fmt.Printf("\nThe line ran on %d nodes, whose clocks differ by up to %s, at %d ticks.\n"+
		"Proven: the job was done once at each of the %d ticks; %s took over from a job that hung, %s from one that failed, and %s from a node that was killed.\n",
		c.nodes, c.skew, c.ticks, c.ticks, next[hangs], next[fails], next[killed])
	return nil
}

func nodes(all []entry) (names []string) {
	for _, e := range all {
		names = append(names, e.node)
	}
	return names
}
