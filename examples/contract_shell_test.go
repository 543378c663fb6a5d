package examples

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestContractShell runs the cases of the contract that can be said with the tools of the shell. A hold
// is a process: with-lock, or `locksidecar run` and `lead`, with a command that says what it finds in its
// environment, and ends when it is told to. So what a script asks of a hold is whether that still runs, and how it has ended.
func TestContractShell(t *testing.T) {
	needs(t, "bash curl", "bash", "curl")
	for _, c := range contractCases(t) {
		why, stated := notInShell[c.name]
		reasons := unsayable(c.contractCase)
		if stated != (len(reasons) > 0) || stated && !slices.Contains(reasons, why) {
			t.Errorf("%s: what is stated: %q; what no tool has a word for: %q", c.name, why, reasons)
			continue
		}
		if stated {
			t.Run(c.name, func(t *testing.T) { t.Skip(why) })
			continue
		}
		stores := map[string]func(*testing.T) string{"redis": redisURL, "mysql": func(t *testing.T) string { t.Helper(); return testengine.Shared(t, testengine.MySQL).URL() }}
		for _, store := range map[string][]string{"": {"redis"}, "shared": {"redis", "mysql"}, "mysql": {"mysql"}}[c.Store] {
			for _, tool := range []string{"with-lock", "run"} {
				t.Run(c.name+"-"+store+"-"+tool, func(t *testing.T) {
					t.Parallel()
					long(t)
					spec := c.contractCase
					spec.Clients = nil // none in this process
					r := &shellRun{newContractRun(t, spec, stores[store](t)), tool, c.Clients, map[string]*shellHold{}, map[string]*program{}}
					for i, s := range c.Steps {
						if err := r.step(s); err != nil {
							t.Fatalf("step %d, %s %s%s: %v", i+1, s.Do, s.Hold, s.Call, err)
						}
					}
				})
			}
		}
	}
}

// shellCommand says what it has in its environment, and when it gets SIGTERM. It ends with the status that it reads.
const shellCommand = `trap 'echo lost' TERM
echo "pid $$"
echo "held $(env -0 | base64 -w0)"
until read -r status; do (($? > 128)) || exit 9; done
exit "$status"`

type shellRun struct {
	*contractRun        // the sidecars
	tool         string // for what both with-lock and `locksidecar run` can say
	clients      map[string]string
	taken        map[string]*shellHold // by hold, and by call
	watching     map[string]*program
}

// shellHold is a tool, and the command that it runs or is to run.
type shellHold struct {
	*program
	client string
	leads  bool
	input  io.WriteCloser
	why    string        // it was lost, as a step has it
	ended  chan struct{} // closed when the command has ended; nil: it was not seen to run
	endsAt time.Time     // valid then
}

func (r *shellRun) step(s contractStep) error {
	do, ok := map[string]func(contractStep) error{
		"acquire": r.acquire, "pending": r.pending, "cancel": r.cancel, "answer": r.answer, "release": r.release, "dispose": r.dispose,
		"check": r.check, "look": r.look, "lost": r.lost, "slots": r.slots, "rising": r.rising, "order": r.order, "close": r.close,
		"open": r.open, "leader": r.leader, "watchLeader": r.watchLeader, "told": r.told,
		"freeze": r.freeze, "thaw": r.thaw, "kill": r.kill, "ended": r.ended, "start": r.doStart, "force": r.force, "queue": r.queue, "pause": r.pause,
	}[s.Do]
	if !ok {
		return errors.New("the step is not known")
	}
	err := do(s)
	if s.Call != "" && s.Do != "answer" {
		return err
	}
	var why shellError
	if err != nil && !errors.As(err, &why) {
		return err
	}
	if got := string(why); got != s.Error { // there is a text for people, and no metadata
		return fmt.Errorf("got %q, want %q", got, s.Error)
	}
	return nil
}

// shellError is the reason of an error.
type shellError string

func (r shellError) Error() string { return string(r) }

func (r *shellRun) socket(client string) string { return r.sidecars[r.clients[client]].socket }

// acquire starts the tool that can say it.
func (r *shellRun) acquire(s contractStep) error {
	names := s.Resources
	if s.Resource != nil {
		names = []string{*s.Resource}
	}
	var flags []string
	for flag, value := range map[string]int{"max-hold": s.MaxHold, "min-hold": s.MinHold} {
		if value != 0 {
			flags = append(flags, fmt.Sprintf("--%s=%dms", flag, value))
		}
	}
	if s.Limit != 0 {
		flags = append(flags, "--limit="+strconv.Itoa(s.Limit))
	}
	if s.Mode == "SHARED" {
		flags = append(flags, "--shared")
	}
	value, leads := r.spec.Metadata[s.Client]["leader"]
	program, kind := binary, "run"
	if leads {
		kind, flags = "lead", append(flags, "--publish="+value)
	}
	wait := "forever"
	var argv []string
	if r.tool == "with-lock" && len(flags) == 0 && len(names) == 1 && r.spec.Store != "mysql" { // it knows of no guard
		if s.Wait != nil {
			wait = fmt.Sprint(ms(*s.Wait).Seconds())
		}
		program, argv = "shell/with-lock", []string{names[0], wait}
	} else {
		if s.Wait != nil {
			flags = append(flags, "--wait="+ms(*s.Wait).String())
		}
		argv = append(append(append([]string{kind}, flags...), names...), "--")
	}
	cmd := exec.CommandContext(context.Background(), program, append(argv, "bash", "-c", shellCommand)...)
	cmd.Env = environment("LOCKSIDECAR_SOCKET=" + r.socket(s.Client))
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	before := r.stand(s.Client, names[0])
	h := &shellHold{program: launchCmd(r.t, cmd), client: s.Client, leads: leads, input: input}
	if s.Call != "" {
		r.taken[s.Call] = h
		for end := time.Now().Add(time.Second); r.stand(s.Client, names[0]) == before && !h.over() && time.Now().Before(end); { // a program starts late on a busy machine
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}
	r.taken[s.Hold] = h
	return h.granted(patience)
}

// stand is how many hold a lock, or wait for it, where its sidecar says so.
func (r *shellRun) stand(client, resource string) int {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	l, err := r.sidecars[r.clients[client]].client.Get(ctx, resource)
	if err != nil { // it is frozen, perhaps
		return -1
	}
	return len(l.GetHolders()) + len(l.GetWaiters())
}

func (h *shellHold) granted(within time.Duration) error {
	for end := time.Now().Add(within); ; time.Sleep(2 * time.Millisecond) {
		over := h.over()
		if _, ok := h.out.first("held "); ok {
			return h.watch()
		}
		if over {
			return h.refusal()
		}
		if time.Now().After(end) {
			return errors.New("no answer in time")
		}
	}
}

func (h *shellHold) over() bool {
	select {
	case <-h.exited:
		return true
	default:
		return false
	}
}

// refusal is why the command was not run. with-lock gives the sidecar's reason, the program a status and a text.
func (h *shellHold) refusal() error {
	said := h.err.String()
	_, coded, _ := strings.Cut(said, "with-lock: not run: ")
	if reason, _, ok := strings.Cut(coded, ": "); ok && reason == strings.ToUpper(reason) {
		return shellError(reason)
	}
	if status, ok := h.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() || h.code == 128+int(syscall.SIGTERM) {
		return shellError("CANCELLED")
	}
	for _, of := range []struct {
		code         int
		text, reason string
	}{
		{75, "is not free", "LOCK_HELD"},
		{75, "the wait for", "WAIT_TIMEOUT"},
		{69, "no sidecar answers", "NO_SIDECAR"},
		{75, "curl: (7)", "NO_SIDECAR"},
		{69, "", "SIDECAR_GONE"}, // the sidecar did not answer
		{75, "curl: ", "SIDECAR_GONE"},
		{125, "", "INVALID_REQUEST"},
	} {
		if h.code == of.code && strings.Contains(said, of.text) {
			return shellError(of.reason)
		}
	}
	return fmt.Errorf("status %d: %s", h.code, said)
}

// ending is how a hold has ended that is over; nil where it goes on.
func (h *shellHold) ending() error {
	if _, told := h.out.first("lost"); told || h.over() && h.code == 76 {
		return shellError("LOCK_LOST")
	}
	if h.over() {
		return shellError("NOT_HOLDER")
	}
	return nil
}

func (r *shellRun) pending(s contractStep) error {
	time.Sleep(ms(s.Time))
	h := r.taken[s.Call]
	if _, held := h.out.first("held "); held || h.over() {
		return fmt.Errorf("it was answered: %s", &h.out)
	}
	return nil
}

func (r *shellRun) cancel(s contractStep) error {
	r.taken[s.Call].signal(syscall.SIGTERM)
	return nil
}

func (r *shellRun) answer(s contractStep) error {
	h := r.taken[s.Call]
	if s.Hold != "" {
		r.taken[s.Hold] = h
	}
	return h.granted(ms(s.Within))
}

// release lets the command end: well, or as one that is to lead no more.
func (r *shellRun) release(s contractStep) error {
	h, status := r.taken[s.Hold], 0
	if h.over() {
		return h.ending()
	}
	if h.leads {
		status = 1 // with 0 it stands again
	}
	if _, err := fmt.Fprintln(h.input, status); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	switch code := h.wait(); {
	case code == 76 && !h.tells():
		return fmt.Errorf("it does not say %s: %s", h.why, &h.err)
	case code == 76:
		return shellError("LOCK_LOST")
	case code != status:
		return fmt.Errorf("status %d: %s", code, &h.err)
	}
	return nil
}

func (r *shellRun) dispose(s contractStep) error {
	if r.taken[s.Hold].over() {
		return nil
	}
	return r.release(s)
}

func (r *shellRun) check(s contractStep) error { return r.taken[s.Hold].ending() }

// env is what the command has found in its environment.
func (h *shellHold) env(name string) string {
	held, _ := h.out.first("held ")
	text, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(held.text, "held "))
	if err != nil {
		h.t.Fatal(err)
	}
	for entry := range strings.SplitSeq(string(text), "\x00") {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func (r *shellRun) look(s contractStep) error {
	h := r.taken[s.Hold]
	var wrong []error
	expect := func(what string, is, want any) {
		if is != want {
			wrong = append(wrong, fmt.Errorf("%s: %v", what, is))
		}
	}
	if s.Lost != nil {
		expect("lost", errors.Is(h.ending(), shellError("LOCK_LOST")), *s.Lost)
	}
	if s.ValidFor != nil { // the tools end what is valid no more, and do not say for how long it is
		expect("over", h.ending() != nil, s.ValidFor[1] == 0)
	}
	if s.Mode != "" {
		name, _, _ := strings.Cut(h.env("LOCKSIDECAR_RESOURCE"), "\n")
		holders := r.sidecars[r.clients[h.client]].lock(name).GetHolders()
		expect("mode", len(holders) > 0 && holders[0].GetMode().String() == s.Mode, true)
	}
	if s.Guard != nil {
		expect("guard", h.env("LOCKSIDECAR_GUARD") != "", *s.Guard)
	}
	if s.Parts != nil {
		parts := strings.Split(h.env("LOCKSIDECAR_RESOURCE"), "\n")
		expect("fences", len(strings.Fields(h.env("LOCKSIDECAR_FENCE"))), len(parts))
		if len(parts) == 1 {
			parts = nil
		}
		expect("parts", strings.Join(parts, ", "), strings.Join(*s.Parts, ", "))
	}
	if s.Slot != nil {
		expect("slot", cmp.Or(h.env("LOCKSIDECAR_SLOT"), "null"), string(s.Slot))
	}
	return errors.Join(wrong...)
}

func (r *shellRun) slots(s contractStep) error {
	var slots []int
	for _, name := range s.Holds {
		slot, err := strconv.Atoi(r.taken[name].env("LOCKSIDECAR_SLOT"))
		if err != nil {
			return err
		}
		slots = append(slots, slot)
	}
	if slices.Sort(slots); !slices.Equal(slots, s.Are) {
		return fmt.Errorf("slots %v", slots)
	}
	return nil
}

// whyLost is what the tools say of a loss.
var whyLost = map[string]string{
	"":               "",
	"FORCED":         "forced its release",
	"MAX_HOLD":       "longer than its max_hold",
	"SIDECAR_SILENT": "the sidecar was not heard of in time",
	"SIDECAR_GONE":   "the connection to the sidecar ended",
}

// tells is whether the tool has said why the lock is lost.
func (h *shellHold) tells() bool { return strings.Contains(h.err.String(), whyLost[h.why]) }

// lost waits until the command is told, or was ended. with-lock says why when it ends.
func (r *shellRun) lost(s contractStep) error {
	h := r.taken[s.Hold]
	h.why = s.Reason
	for end := time.Now().Add(ms(s.Within)); ; time.Sleep(2 * time.Millisecond) {
		over := h.over()
		if errors.Is(h.ending(), shellError("LOCK_LOST")) && (h.tells() || r.tool == "with-lock" && !over) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("it is not told in time: %s", &h.err)
		}
	}
}

func (r *shellRun) rising(s contractStep) error {
	last := int64(0)
	for _, name := range s.Holds {
		fence, err := strconv.ParseInt(r.taken[name].env("LOCKSIDECAR_FENCE"), 10, 64)
		if err != nil || fence <= last {
			return fmt.Errorf("fence %d of %s after %d: %w", fence, name, last, err)
		}
		last = fence
	}
	return nil
}

func (r *shellRun) order(s contractStep) error {
	lost := r.taken[strings.TrimPrefix(s.First, "lost:")]
	first, told := lost.out.first("lost")
	if !told { // killed at once
		select {
		case <-lost.ended:
			first.at = lost.endsAt
		case <-time.After(patience):
			return errors.New("the command goes on")
		}
	}
	if then, ok := r.taken[strings.TrimPrefix(s.Then, "got:")].out.first("held "); !ok || first.at.IsZero() || !first.at.Before(then.at) {
		return fmt.Errorf("at %s and %s", first.at, then.at)
	}
	return nil
}

// close is for clients that hold nothing: where they do, see notInShell.
func (r *shellRun) close(s contractStep) error {
	for name, h := range r.taken {
		if h.client == s.Client && !h.over() {
			return fmt.Errorf("%s goes on", name)
		}
	}
	return nil
}

// open asks whether a session could be had: each tool opens its own.
func (r *shellRun) open(s contractStep) error {
	out := launch(r.t, []string{"LOCKSIDECAR_SOCKET=" + r.socket(s.Client)}, binary, "info")
	if out.wait() != 0 && strings.Contains(out.err.String(), "no sidecar answers") {
		return shellError("NO_SIDECAR")
	}
	return nil
}

func (r *shellRun) leaderOf(client, resource string, flags ...string) *program {
	args := append([]string{"leader", resource, "-o", "json"}, flags...)
	return launch(r.t, []string{"LOCKSIDECAR_SOCKET=" + r.socket(client)}, binary, args...)
}

// leads compares what `locksidecar leader` says with a step.
func (r *shellRun) leads(s contractStep, said string) error {
	var is struct {
		Leads      bool
		Value      string
		Holder     *struct{ Fence string }
		Candidates int
	}
	if err := json.Unmarshal([]byte(said), &is); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	if is.Leads != (s.Value != nil) || is.Leads && is.Value != *s.Value || s.Candidates != nil && is.Candidates != *s.Candidates ||
		s.Hold != "" && is.Holder.Fence != r.taken[s.Hold].env("LOCKSIDECAR_FENCE") {
		return fmt.Errorf("it says %s", said)
	}
	return nil
}

func (r *shellRun) leader(s contractStep) error {
	for end := time.Now().Add(ms(s.Within)); ; time.Sleep(20 * time.Millisecond) {
		p := r.leaderOf(s.Client, *s.Resource)
		p.wait()
		if err := r.leads(s, p.out.String()); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (r *shellRun) watchLeader(s contractStep) error {
	r.watching[s.Watch] = r.leaderOf(s.Client, *s.Resource, "--watch", "--interval", ms(s.Interval).String())
	return nil
}

// told looks for a line of the watch: each step has a leader of its own.
func (r *shellRun) told(s contractStep) error {
	for end := time.Now().Add(ms(s.Within)); ; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(r.watching[s.Watch].out.String()) {
			if strings.HasSuffix(line, "\n") && r.leads(s, line) == nil {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("it does not say so in time: %s", &r.watching[s.Watch].out)
		}
	}
}
