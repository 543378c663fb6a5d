package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/torture/app"
	"github.com/locksidecar/locksidecar/torture/history"
)

// ttl is that of the sidecars' leases: as short as all stores do well, so that much
// happens in little time.
const ttl = 2 * time.Second

// workers are the threads of an app.
const workers = 2

var resources = []string{"a", "b/c", "d", "e"}

// world is a store with sidecars and apps.
type world struct {
	t       testing.TB
	plan    plan
	binary  string
	servers []testengine.Server // none: embedded; several: shards
	dir     string
	witness *history.Writer
	files   []string // all histories
	sides   []*side
	apps    []*appSlot
	found   []string      // which promises were broken, and how
	letters string        // the folder for handles; empty: the store has none
	fresh   size          // of a sidecar that has just started; the largest
	shift   time.Duration // of the server's clock
	dozes   time.Duration // by how much the store's leases may last longer for it
}

// newWorld starts the store and its sidecars.
func newWorld(t testing.TB, p plan, binary string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "lst") // the names of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, plan: p, binary: binary, dir: dir}
	t.Cleanup(w.keepOrRemove)
	if p.detaches {
		w.letters = filepath.Join(dir, "letters")
		if err := os.Mkdir(w.letters, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range max(p.shards, 1) {
		if p.kind != nil {
			w.servers = append(w.servers, testengine.New(t, p.kind))
		}
	}
	w.witness = w.history("witness")
	t.Cleanup(func() { _ = w.witness.Close() })
	if p.reigns {
		w.watchReign(w.servers[0].(testengine.Noder).Nodes())
	}
	for i := range p.sides {
		s := &side{w: w, name: fmt.Sprintf("side%d", i), store: "embedded:", asks: i == 2}
		s.socket = filepath.Join(dir, s.name)
		var urls []string
		for k, server := range w.servers {
			road := testengine.Through(t, server)
			s.roads = append(s.roads, road)
			url := road.URL()
			if p.shards > 0 {
				url += fmt.Sprintf("?shard=redis-%d", k) // with these names each of three has one of the resources at least
			}
			urls = append(urls, url+p.options)
		}
		if urls != nil {
			s.store = strings.Join(urls, " ")
		}
		w.sides = append(w.sides, s)
		t.Cleanup(func() {
			if s.p != nil {
				s.p.kill()
			}
		})
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range w.sides {
		if err := eventually(s.ready); err != nil {
			t.Fatalf("%s is not ready: %v\n%s", s.name, err, s.p.tail())
		}
		n, err := s.size()
		if err != nil {
			t.Fatal(err)
		}
		w.fresh = size{max(n.goroutines, w.fresh.goroutines), max(n.files, w.fresh.files), max(n.memory, w.fresh.memory)}
	}
	return w
}

func (w *world) history(name string) *history.Writer {
	w.t.Helper()
	file := filepath.Join(w.dir, name+".jsonl")
	h, err := history.Create(file)
	if err != nil {
		w.t.Fatal(err)
	}
	w.files = append(w.files, file)
	return h
}

// note writes down what is done, for people.
func (w *world) note(what string) {
	w.witness.Write(history.Record{Kind: history.Fault, At: history.Now(), Err: what})
}

// forgets writes down that the store forgets what it keeps for nobody, by now at the latest.
func (w *world) forgets() {
	w.witness.Write(history.Record{Kind: history.Forgot, At: history.Now()})
}

// eventually waits until something works, and gives why it does not.
func eventually(f func() error) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// side is a sidecar, through all its lives.
type side struct {
	w             *world
	name          string
	socket, store string
	roads         []*testengine.Proxy // to each server; none: its store is embedded
	asks          bool                // each request asks the store: there is no arbiter

	mu sync.Mutex // of p, for those who only look
	p  *process
}

func (s *side) start() error {
	args := []string{
		"serve", "--socket", s.socket, "--store", s.store, "--ttl", ttl.String(), "--name", s.name, "--log-level", "debug",
		"--drain", "200ms", "--lost-grace", "300ms",
	}
	if s.asks {
		args = append(args, "--local-turns", "0")
	}
	p, err := launch(filepath.Join(s.w.dir, s.name+".log"), nil, s.w.binary, args...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.p = p
	return nil
}

// ready asks whether the sidecar can grant locks.
func (s *side) ready() error {
	return s.ask(func(ctx context.Context, c *client.Client) error {
		i, err := c.Info(ctx)
		if err == nil && !i.GetReady() {
			err = errors.New(i.GetNotReadyBecause())
		}
		return err
	})
}

// ask connects to the sidecar for a question.
func (s *side) ask(f func(ctx context.Context, c *client.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, s.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}

// stop asks the sidecar to end, as an orderly stop does.
func (s *side) stop() error {
	s.w.witness.Write(history.Record{Kind: history.Stopped, At: history.Now(), Side: s.name})
	if s.roads == nil { // its store ends with it
		s.w.forgets()
		defer s.w.forgets()
	}
	s.p.signal(syscall.SIGTERM)
	err := s.p.wait(patience)
	if st, ok := s.p.status(); ok && st.Signaled() && st.Signal() == syscall.SIGTERM {
		return nil // it had not yet come so far as to listen to signals
	}
	if err != nil {
		err = fmt.Errorf("stop %s: %w\n%s", s.name, err, s.p.tail())
		s.p.kill()
	}
	return err
}

// kill ends the sidecar as kill -9 does.
func (s *side) kill() {
	if s.roads == nil { // its store dies with it
		s.w.witness.Write(history.Record{Kind: history.Died, At: history.Now(), Side: s.name})
		s.w.forgets()
		defer s.w.forgets()
	}
	s.p.kill()
}

// appSlot is an app, through all its lives.
type appSlot struct {
	w      *world
	number int
	side   *side
	life   int
	name   string
	p      *process
}

// startApps starts all apps, half of each sidecar with a TTL for their sessions.
func (w *world) startApps(seed uint64) {
	w.t.Helper()
	w.apps = nil
	for i := range w.plan.apps {
		a := &appSlot{w: w, number: i, side: w.sides[i%len(w.sides)]}
		w.apps = append(w.apps, a)
		w.t.Cleanup(func() {
			if a.p != nil {
				a.p.kill()
			}
		})
		if err := a.start(seed); err != nil {
			w.t.Fatal(err)
		}
	}
}

// start begins another life of the app.
func (a *appSlot) start(seed uint64) error {
	a.life++
	a.name = fmt.Sprintf("app%d.%d-%x", a.number, a.life, seed)
	o := app.Order{
		Name: a.name, Side: a.side.name, Socket: a.side.socket, Workers: workers, Resources: resources,
		History: filepath.Join(a.w.dir, a.name+".jsonl"), MinHold: a.w.plan.minHold, Letters: a.w.letters,
		Stays: a.w.plan.shards > 0,
	}
	if a.w.plan.permits {
		o.Permits = "permits"
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.name)) // never fails
	o.Seed = h.Sum64()
	if a.number%4 == 3 {
		o.TTL = ttl
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	a.w.addFile(o.History)
	a.p, err = launch(filepath.Join(a.w.dir, "apps.log"), []string{app.Env + "=" + string(text)}, self)
	return err
}

var filesMu sync.Mutex

func (w *world) addFile(path string) {
	filesMu.Lock()
	defer filesMu.Unlock()
	w.files = append(w.files, path)
}

// kill ends the app as kill -9 does.
func (a *appSlot) kill() {
	a.w.witness.Write(history.Record{Kind: history.Killed, At: history.Now(), App: a.name})
	a.p.kill()
}

// settle tells all apps that all is over, and waits until each has got every lock once
// more and has ended. It returns how long that took.
func (w *world) settle() time.Duration {
	w.t.Helper()
	began := time.Now()
	for _, a := range w.apps {
		if _, err := fmt.Fprintln(a.p.stdin, app.Settle); err != nil {
			w.t.Errorf("%s: %v", a.name, err)
		}
	}
	var late []string
	for _, a := range w.apps {
		if err := a.p.wait(time.Until(began.Add(w.bound() + patience))); err != nil {
			late = append(late, fmt.Sprintf("%s: %v", a.name, err))
		}
	}
	if late != nil {
		w.found = append(w.found, fmt.Sprintf("all was healed, and not everybody has got every lock: %s\n%s", strings.Join(late, ", "), w.locks()))
		for _, a := range w.apps { // their logs say what they wait for
			a.p.signal(syscall.SIGQUIT)
		}
		for _, s := range w.sides {
			s.p.signal(syscall.SIGQUIT)
			_ = s.p.wait(patience)
		}
	}
	return time.Since(began)
}

// bound is how long all that was broken may last: the leases of the dead, what a server
// that has just started waits for, what is detached after that, and some time for each to have its turn.
func (w *world) bound() time.Duration {
	bound := ttl + w.plan.slack + w.dozes + 5*time.Second
	if w.plan.detaches {
		bound += app.Detached
	}
	return bound
}

// keepOrRemove removes what was written, or keeps it where it can be looked at.
func (w *world) keepOrRemove() {
	if w.t.Failed() && *keep != "" {
		to := filepath.Join(*keep, filepath.Base(w.t.Name()))
		for _, s := range w.sides {
			_ = os.Remove(s.socket) // it cannot be copied
		}
		err := os.CopyFS(to, os.DirFS(w.dir))
		w.t.Logf("histories and logs are in %s (%v)", to, err)
	}
	_ = os.RemoveAll(w.dir)
}

// locks is who holds and waits, as each sidecar sees it.
func (w *world) locks() string {
	var b strings.Builder
	for _, s := range w.sides {
		err := s.ask(func(ctx context.Context, c *client.Client) error {
			for l, err := range c.List(ctx, "") {
				if err != nil {
					return err
				}
				fmt.Fprintf(&b, "%s sees: %v\n", s.name, l)
			}
			return nil
		})
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", s.name, err)
		}
	}
	return b.String()
}

// empty finds what is left in the store.
func (w *world) empty() {
	for _, s := range w.sides {
		err := eventually(func() error {
			return s.ask(func(ctx context.Context, c *client.Client) error {
				for l, err := range c.List(ctx, "") {
					if err != nil {
						return err
					}
					return fmt.Errorf("there is %v", l)
				}
				return nil
			})
		})
		if err != nil {
			w.found = append(w.found, fmt.Sprintf("everybody has ended, and %s still sees somebody: %v", s.name, err))
		}
	}
}
