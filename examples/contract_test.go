package examples

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// contractCase is one of contract/*.json. contract/README.md says what the fields mean.
type contractCase struct {
	About    string
	Store    string
	Needs    []string
	Sidecars map[string]map[string]string
	Relays   map[string]struct{ To, Without string }
	Clients  map[string]string
	Metadata map[string]map[string]string
	Steps    []contractStep
}

// contractStep has the fields of all steps. Those that are not given are nil, or empty where
// empty means the same.
type contractStep struct {
	Do       string
	Error    string
	Metadata []string
	Within   int

	Client, Sidecar, Relay string
	Time, Lines            int

	Resource                *string
	Resources               []string
	Mode, Owner, Hold, Call string
	Wait, Count             *int
	MaxHold, MinHold, Limit int
	Reentrant, Unwatched    bool
	Detachable              bool
	TTL                     int
	Handle                  string
	Once                    *struct{ Keep, MaxAttempts int }
	Outcome, Note, Reason   string
	Lost, Guard             *bool
	ValidFor                *[2]float64
	Parts                   *[]string
	Slot, Previous          json.RawMessage
	Attempt                 *int
	Holds, Owners           []string
	Are                     []int
	First, Then             string
	Grace, Holders, Waiters int
	Value                   *string
	Watch                   string
	Interval                int
	Candidates              *int
	Steps                   []contractStep
}

// TestContract runs the cases that every client must pass with Go's.
func TestContract(t *testing.T) {
	for _, one := range contractCases(t) {
		if slices.Contains(one.Needs, "stop") {
			continue // below
		}
		one.run(t, true)
	}
}

// The process of the test is stopped for a while: nothing else runs in it then.
func TestContractAlone(t *testing.T) {
	for _, one := range contractCases(t) {
		if slices.Contains(one.Needs, "stop") {
			one.run(t, false)
		}
	}
}

type namedCase struct {
	contractCase
	name string
}

func contractCases(t *testing.T) []namedCase {
	t.Helper()
	files, err := filepath.Glob("contract/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var all []namedCase
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		one := namedCase{name: strings.TrimSuffix(filepath.Base(file), ".json")}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&one.contractCase); err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		all = append(all, one)
	}
	return all
}

func (c namedCase) run(t *testing.T, parallel bool) {
	t.Helper()
	redis := func(t *testing.T) string { t.Helper(); return redisURL(t) }
	mysql := func(t *testing.T) string { t.Helper(); return testengine.Shared(t, testengine.MySQL).URL() }
	stores := map[string]map[string]func(*testing.T) string{
		"":       {"redis": redis},
		"shared": {"redis": redis, "mysql": mysql},
		"mysql":  {"mysql": mysql},
	}[c.Store]
	if stores == nil {
		t.Fatalf("%s asks for a store that is not known: %q", c.name, c.Store)
	}
	for name, url := range stores {
		t.Run(c.name+"-"+name, func(t *testing.T) {
			if parallel {
				t.Parallel()
			}
			long(t)
			if slices.Contains(c.Needs, "fork") {
				t.Skip("Go does not fork")
			}
			if slices.Contains(c.Needs, "sessions") {
				t.Skip("in Go the app opens its sessions")
			}
			newContractRun(t, c.contractCase, url(t)).steps(c.Steps)
		})
	}
}

// contractRun is one run of one case.
type contractRun struct {
	t        *testing.T
	ctx      context.Context
	spec     contractCase
	store    string
	space    string
	sidecars map[string]*sidecar
	relays   map[string]*withholder
	apps     map[string]*contractApp
	holds    map[string]*contractHold
	calls    map[string]*contractCall
	handles  map[string]*pb.DetachedHold
	watches  map[string]*leaderWatch
	asked    int
}

// contractApp is a client of a case: a session of its own.
type contractApp struct {
	at       string // the sidecar or the relay
	metadata map[string]string
	client   *client.Client
	session  *client.Session
}

// contractHold is a grant, and the moment at which its loss was told.
type contractHold struct {
	lock *client.Lock
	lost chan time.Time // closed where nobody listens
	at   time.Time
}

// contractCall is an acquire in the background.
type contractCall struct {
	cancel context.CancelFunc
	done   chan struct{}
	lock   *client.Lock
	err    error
	at     time.Time
}

func newContractRun(t *testing.T, c contractCase, store string) *contractRun {
	t.Helper()
	r := &contractRun{
		t: t, ctx: t.Context(), spec: c, store: store, space: rand.Text(),
		sidecars: map[string]*sidecar{}, relays: map[string]*withholder{}, apps: map[string]*contractApp{},
		holds: map[string]*contractHold{}, calls: map[string]*contractCall{}, handles: map[string]*pb.DetachedHold{},
		watches: map[string]*leaderWatch{},
	}
	for name := range c.Sidecars {
		r.start(name)
	}
	for name, relay := range c.Relays {
		r.relays[name] = withhold(t, r.sidecars[relay.To].socket, relay.Without)
	}
	for name, at := range c.Clients {
		r.apps[name] = &contractApp{at: at, metadata: c.Metadata[name]}
		t.Cleanup(func() { r.close(r.apps[name]) })
		if err := r.open(r.apps[name]); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *contractRun) start(name string) {
	r.t.Helper()
	args := []string{"--store", r.store, "--namespace", r.space, "--name", name, "--drain", "0s"}
	for flag, value := range r.spec.Sidecars[name] {
		args = append(args, "--"+flag, value)
	}
	if before := r.sidecars[name]; before != nil {
		r.sidecars[name] = serveAt(r.t, before.socket, args...)
	} else {
		r.sidecars[name] = serve(r.t, args...)
	}
}

func (r *contractRun) steps(steps []contractStep) {
	r.t.Helper()
	for i, s := range steps {
		if err := r.step(s); err != nil {
			r.t.Fatalf("step %d, %s %s%s: %v", i+1, s.Do, s.Hold, s.Call, err)
		}
	}
}

// step carries out a step, and gives what is not as it must be.
func (r *contractRun) step(s contractStep) error {
	do := r.verb(s.Do)
	if do == nil {
		return errors.New("the step is not known")
	}
	if s.Error == "" || s.Call != "" && s.Do != "answer" {
		return do(s)
	}
	end := time.Now().Add(ms(s.Within))
	err := do(s)
	for ; err == nil && s.Do == "check" && time.Now().Before(end); err = do(s) {
		time.Sleep(5 * time.Millisecond)
	}
	return refused(s, err)
}

func (r *contractRun) verb(do string) func(contractStep) error {
	return map[string]func(contractStep) error{
		"acquire": r.acquire, "pending": r.pending, "cancel": r.cancel, "answer": r.answer,
		"release": r.release, "dispose": r.dispose, "drop": r.drop, "downgrade": r.downgrade, "extend": r.extend,
		"detach": r.detach, "attach": r.attach, "extendHandle": r.extendHandle, "releaseHandle": r.releaseHandle, "same": r.same,
		"check": r.check, "look": r.look, "slots": r.slots, "lost": r.lost, "rising": r.rising, "order": r.order,
		"close": r.doClose, "open": r.doOpen, "draining": r.draining, "stop": r.stop,
		"freeze": r.freeze, "thaw": r.thaw, "kill": r.kill, "terminate": r.terminate, "ended": r.ended, "start": r.doStart,
		"force": r.force, "queue": r.queue, "withheld": r.withheld, "pause": r.pause,
		"leader": r.leader, "watchLeader": r.watchLeader, "told": r.told,
	}[do]
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// refused compares an error with what the step says of it.
func refused(s contractStep, err error) error {
	if got := reasonOf(err); got != s.Error {
		return fmt.Errorf("got %q (%w), want %q", got, err, s.Error)
	}
	var said *client.Error
	for _, key := range s.Metadata {
		if !errors.As(err, &said) || said.Metadata[key] == "" {
			return fmt.Errorf("no %s in the error %w", key, err)
		}
	}
	return nil
}

func reasonOf(err error) string {
	var said *client.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, client.ErrLockLost):
		return "LOCK_LOST"
	case errors.As(err, &said):
		return said.Reason
	case errors.Is(err, client.ErrNotHolder):
		return "NOT_HOLDER"
	case errors.Is(err, context.Canceled):
		return "CANCELLED"
	case errors.Is(err, client.ErrNoSidecar):
		return "NO_SIDECAR"
	case errors.Is(err, client.ErrSessionClosed):
		return "SESSION_CLOSED"
	case errors.Is(err, client.ErrStreamEnded):
		return "SIDECAR_GONE"
	default:
		return err.Error()
	}
}

// What the app does.

func (r *contractRun) open(a *contractApp) error {
	socket := ""
	if relay := r.relays[a.at]; relay != nil {
		socket = relay.socket
	} else {
		socket = r.sidecars[a.at].socket
	}
	c, err := client.Dial(r.ctx, socket)
	if err != nil {
		return err
	}
	s, err := c.OpenSession(r.ctx, client.SessionOptions{Name: "contract", Metadata: a.metadata})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	r.close(a)
	a.client, a.session = c, s
	return nil
}

// close is for what nobody needs any more.
func (r *contractRun) close(a *contractApp) {
	if a.session != nil {
		_ = a.session.Close() // a frozen sidecar does not answer
	}
	if a.client != nil {
		_ = a.client.Close()
	}
}

func (r *contractRun) acquire(s contractStep) error {
	a := r.apps[s.Client]
	if err := a.session.Err(); err != nil && !errors.Is(err, client.ErrSessionClosed) {
		if err := r.open(a); err != nil {
			return err
		}
	}
	session := a.session
	if s.Owner == "" { // Go has no name for a goroutine: the app says who asks
		r.asked++
		s.Owner = fmt.Sprintf("acquire %d", r.asked)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	call := &contractCall{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(call.done)
		defer cancel()
		call.lock, call.err = take(ctx, session, s)
		call.at = time.Now()
	}()
	if s.Call != "" {
		r.calls[s.Call] = call
		return nil
	}
	<-call.done
	return r.granted(s, call)
}

func take(ctx context.Context, session *client.Session, s contractStep) (*client.Lock, error) {
	o := client.AcquireOptions{
		Mode: pb.Mode(pb.Mode_value[s.Mode]), MaxHold: ms(s.MaxHold), MinHold: ms(s.MinHold), Owner: s.Owner, Reentrant: s.Reentrant, Limit: s.Limit,
		Detachable: s.Detachable,
	}
	if s.Limit != 0 {
		o.Mode = client.Permit
	}
	if s.Wait != nil {
		if o.Wait = ms(*s.Wait); o.Wait == 0 {
			o.Wait = client.NoWait
		}
	}
	if s.Once != nil {
		o.Once = &client.Once{Keep: ms(s.Once.Keep), MaxAttempts: s.Once.MaxAttempts}
	}
	if s.Resource == nil {
		return session.AcquireAll(ctx, s.Resources, o)
	}
	return session.Acquire(ctx, *s.Resource, o)
}

func (r *contractRun) granted(s contractStep, call *contractCall) error {
	if call.err != nil {
		return call.err
	}
	if s.Count != nil && call.lock.Count() != *s.Count {
		return fmt.Errorf("its count is %d", call.lock.Count())
	}
	h := &contractHold{lock: call.lock, lost: make(chan time.Time, 1)}
	r.holds[s.Hold] = h
	if !s.Unwatched {
		lost := call.lock.Lost()
		go func() {
			select {
			case <-lost:
				h.lost <- time.Now()
			case <-r.ctx.Done():
			}
		}()
	}
	return nil
}

func (r *contractRun) pending(s contractStep) error {
	select {
	case <-r.calls[s.Call].done:
		return fmt.Errorf("it was answered: %w", r.calls[s.Call].err)
	case <-time.After(ms(s.Time)):
		return nil
	}
}

func (r *contractRun) cancel(s contractStep) error {
	r.calls[s.Call].cancel()
	return nil
}

func (r *contractRun) answer(s contractStep) error {
	call := r.calls[s.Call]
	select {
	case <-call.done:
		return r.granted(s, call)
	case <-time.After(ms(s.Within)):
		return errors.New("no answer in time")
	}
}

func (r *contractRun) release(s contractStep) error {
	l := r.holds[s.Hold].lock
	if s.Outcome != "" {
		return l.Conclude(r.ctx, pb.OutcomeState(pb.OutcomeState_value[s.Outcome]), s.Note)
	}
	if err := l.Release(r.ctx); err != nil {
		return err
	}
	if s.Count != nil && l.Count() != *s.Count {
		return fmt.Errorf("its count is %d", l.Count())
	}
	return nil
}

// dispose is what `defer l.Release(ctx)` does.
func (r *contractRun) dispose(s contractStep) error {
	if err := r.holds[s.Hold].lock.Release(r.ctx); !errors.Is(err, client.ErrReleased) {
		return err
	}
	return nil
}

func (r *contractRun) drop(s contractStep) error {
	delete(r.holds, s.Hold)
	return nil
}

func (r *contractRun) downgrade(s contractStep) error { return r.holds[s.Hold].lock.Downgrade(r.ctx) }

func (r *contractRun) extend(s contractStep) error {
	return r.holds[s.Hold].lock.Extend(r.ctx, ms(s.MaxHold))
}

func (r *contractRun) check(s contractStep) error { return r.holds[s.Hold].lock.Err() }

func (r *contractRun) doClose(s contractStep) error { return r.apps[s.Client].session.Close() }

func (r *contractRun) doOpen(s contractStep) error { return r.open(r.apps[s.Client]) }

func (r *contractRun) draining(s contractStep) error {
	select {
	case <-r.apps[s.Client].session.Draining():
		return nil
	case <-time.After(ms(s.Within)):
		return errors.New("it was not told in time")
	}
}
