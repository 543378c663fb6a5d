package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/torture/history"
)

// reign looks which servers of a Redis with replicas are masters. When another one takes over, by a fault or on its own,
// it has forgotten what it lacks; and so has the one before it, as soon as it follows the new one.
type reign struct {
	w     *world
	roles map[string]role // by address, as they were seen last
	since time.Duration   // the one before may have gone on beside the new one from then on
}

// role is what a server was at a moment.
type role struct {
	name string // of Redis: master, slave
	at   time.Duration
}

// watchReign looks until the end of the test.
func (w *world) watchReign(nodes []testengine.Node) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	r := &reign{w: w, roles: map[string]role{}}
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			for _, n := range nodes {
				at := history.Now()
				if name, err := roleOf(ctx, n.Addr()); err == nil { // else it is frozen, or ended
					r.saw(n.Addr(), role{name, at})
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	w.t.Cleanup(func() { cancel(); <-over })
}

// saw notes what a server has said; it.at is from before it was asked.
func (r *reign) saw(addr string, it role) {
	was, known := r.roles[addr]
	r.roles[addr] = it
	if !known || was.name == it.name {
		return
	}
	if it.name == "master" {
		r.since = was.at
	}
	r.w.note(fmt.Sprintf("%s was %s, and is %s", addr, was.name, it.name))
	r.w.witness.Write(history.Record{Kind: history.Forgot, Call: min(r.since, was.at), At: history.Now()})
}

// roleOf asks a server of Redis what it is.
func roleOf(ctx context.Context, addr string) (string, error) {
	const answers = 300 * time.Millisecond
	d := net.Dialer{Timeout: answers}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answers)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "INFO replication\r\n"); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if name, is := strings.CutPrefix(strings.TrimSpace(lines.Text()), "role:"); is {
			return name, nil
		}
	}
	return "", errors.Join(lines.Err(), errors.New("it does not say what it is"))
}
