// Package app is an app process of a run: some workers that take locks through one
// sidecar, hold, share, wait, try, cancel and re-enter, take several at once, leave handles of some to workers
// of other apps, and write down what they were told. It is frozen and killed from outside.
package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/torture/history"
)

// Env is the variable with an Order, as JSON.
const Env = "LOCKSIDECAR_TORTURE_APP"

// Order is what an app is told when it is started.
type Order struct {
	Name      string // of this life of the app
	Side      string // name of its sidecar
	Socket    string // of its sidecar
	History   string // the file that it writes
	Seed      uint64 // its choices come from it
	Workers   int
	Resources []string
	TTL       time.Duration // of its session; 0: none
	MinHold   bool          // the store has min_hold
	Permits   string        // a resource of which permits are taken, too; empty: the store has none
	Stays     bool          // the store has shards: holds many locks for so long that one may be given up meanwhile
	Letters   string        // the folder in which apps leave handles to each other; empty: the store has none
}

// Settle is the line on the standard input that tells an app that all faults are over:
// it then gets every lock once more, says so in its history, and ends.
const Settle = "settle"

// Main is the whole process, where the variable Env is set. It ends with the app;
// else it returns.
func Main() {
	text := os.Getenv(Env)
	if text == "" {
		return
	}
	var o Order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", o.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(o Order) error {
	w, err := history.Create(o.History)
	if err != nil {
		return err
	}
	a := &app{Order: o, w: w, over: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		defer cancel(errors.New("who started it is gone"))
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if lines.Text() == Settle {
				close(a.over)
			}
		}
	}()
	var workers sync.WaitGroup
	for i := range o.Workers {
		workers.Go(func() { newWorker(a, i).work(ctx) })
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	a.write(history.Record{Kind: history.Settled, At: history.Now()})
	a.close()
	return w.Close()
}

// app is what the workers of a process share: one session at a time.
type app struct {
	Order
	w    *history.Writer
	over chan struct{} // closed when all faults are over

	mu      sync.Mutex
	client  *client.Client
	session *client.Session
}

func (a *app) write(r history.Record) {
	r.App, r.Side, r.Mortal = a.Name, a.Side, a.TTL != 0 || r.Parts != nil && a.Stays
	a.w.Write(r)
}

func (a *app) isOver() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

// again is the pause before something that has failed is tried again.
const again = 30 * time.Millisecond

// open gives the app's session; where it has ended, or its sidecar is away, another
// one as soon as that can be had. nil: ctx has ended.
func (a *app) open(ctx context.Context) *client.Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ctx.Err() == nil {
		if a.session != nil && a.session.Err() == nil {
			return a.session
		}
		a.drop()
		if err := a.connect(ctx); err == nil {
			continue
		}
		pause(ctx, again)
	}
	return nil
}

// connect opens a session. a.mu is held.
func (a *app) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, a.Socket)
	if err != nil {
		return err
	}
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: a.Name, TTL: a.TTL})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	a.client, a.session = c, s
	return nil
}

// drop forgets the session. a.mu is held.
func (a *app) drop() {
	if a.client != nil {
		_ = a.session.Close() // it has ended, or everything in it was released
		_ = a.client.Close()
		a.client, a.session = nil, nil
	}
}

func (a *app) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop()
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
