package redislock

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/locksidecar/locksidecar/lock"
)

var (
	//go:embed lua/lib.lua
	libLua string
	//go:embed lua/server.lua
	serverLua string
	//go:embed lua/term.lua
	termLua string
	//go:embed lua/detach.lua
	detachLua string
	//go:embed lua/attach.lua
	attachLua string
	//go:embed lua/handle.lua
	handleLua string
	//go:embed lua/acquire_fast.lua
	acquireFastLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/release_fast.lua
	releaseFastLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/downgrade.lua
	downgradeLua string
	//go:embed lua/describe.lua
	describeLua string
	//go:embed lua/advance.lua
	advanceLua string
	//go:embed lua/force.lua
	forceLua string
	//go:embed lua/ack.lua
	ackLua string
	//go:embed lua/holds.lua
	holdsLua string
	//go:embed lua/reap.lua
	reapLua string
	//go:embed lua/kept.lua
	keptLua string
	//go:embed lua/dead.lua
	deadLua string
	//go:embed lua/find.lua
	findLua string
	//go:embed lua/living.lua
	livingLua string
	//go:embed lua/status.lua
	statusLua string
	//go:embed lua/open.lua
	openLua string
	//go:embed lua/heartbeat.lua
	heartbeatLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/drop.lua
	dropLua string
	//go:embed lua/forget.lua
	forgetLua string
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/record_read.lua
	recordReadLua string
	//go:embed lua/record_write.lua
	recordWriteLua string
	//go:embed lua/record_delete.lua
	recordDeleteLua string
)

// script is a Lua script with the name under which it is observed. It is put together
// when it is used for the first time, as most sidecars have another store.
type script struct {
	name string
	code func() code
}

type code struct {
	text string
	sha  any // a string, as a command takes it
}

func newScript(name string, parts ...string) *script {
	return &script{name: name, code: sync.OnceValue(func() code {
		text := strings.Join(parts, "")
		return code{text: text, sha: redis.NewScript(text).Hash()}
	})}
}

var (
	scriptAcquire   = newScript("acquire", termLua, acquireFastLua, libLua, acquireLua)
	scriptRelease   = newScript("release", releaseFastLua, libLua, releaseLua)
	scriptDetach    = newScript("detach", libLua, detachLua)
	scriptAttach    = newScript("attach", termLua, libLua, attachLua)
	scriptHandle    = newScript("set_handle", libLua, handleLua)
	scriptDowngrade = newScript("downgrade", libLua, downgradeLua)
	scriptDescribe  = newScript("describe", libLua, describeLua)
	scriptAdvance   = newScript("advance", libLua, advanceLua)
	scriptForce     = newScript("force_release", libLua, forceLua)
	scriptAck       = newScript("acknowledge", ackLua)
	scriptHolds     = newScript("holds", holdsLua)
	scriptReap      = newScript("reap", libLua, reapLua)
	scriptDead      = newScript("find_dead", serverLua, deadLua, forgetLua, findLua)
	scriptKept      = newScript("find_kept", keptLua)
	scriptLiving    = newScript("living_leases", livingLua)
	scriptStatus    = newScript("status", libLua, statusLua)
	scriptOpen      = newScript("open_lease", serverLua, openLua)
	scriptHeartbeat = newScript("heartbeat", serverLua, deadLua, forgetLua, heartbeatLua)
	scriptRenew     = newScript("renew", renewLua)
	scriptDrop      = newScript("drop_lease", dropLua)

	scriptReadRecord   = newScript("read_record", recordReadLua)
	scriptWriteRecord  = newScript("write_record", recordLua, forgetLua, recordWriteLua)
	scriptDeleteRecord = newScript("delete_record", recordLua, recordDeleteLua)
)

// maxPipeline bounds what goes to the server in one piece: it carries out a piece
// before it looks at other clients.
const maxPipeline = 32

// processor is what both a client and a batcher can do.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// command is sent once. The Cluster client would send it again by itself when
// the answer does not come, and then the answer to a release that was carried
// out would be that there was nothing to release.
type command struct {
	redis.Cmd
	script *script   // that it runs by its name; nil: it does not, or the caller sees to what the server does not know
	by     *presence // who answered; nil: unknown
	copies int       // replicas that have it, where that was asked for
}

// NoRetry implements redis.Cmder.
func (*command) NoRetry() bool { return true }

func newCommand(ctx context.Context, args ...any) *command {
	return &command{Cmd: *redis.NewCmd(ctx, args...)} // one piece of memory
}

// firstKey is where the keys of a script stand among the arguments of its command.
const firstKey = 3

// newCmd makes the command that runs a script. how and what are strings.
func newCmd(ctx context.Context, how, what any, keys []string, args []any) *command {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, how, what, len(keys))
	for i := range keys {
		all = append(all, &keys[i]) // a string would be copied
	}
	cmd := newCommand(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// words are arguments of a script, without a copy of each.
func words(all ...string) []any {
	args := make([]any, len(all), len(all)+2)
	for i := range all {
		args[i] = &all[i]
	}
	return args
}

// reply is the answer to a script.
type reply struct {
	val    any
	by     *presence
	copies int
	err    error
}

func replyOf(c *command) reply {
	r := reply{c.Val(), c.by, c.copies, c.Err()}
	// A script's nil is an answer; and where ctx ends while the Cluster client waits for
	// one node, it says so of the answers of all.
	if r.val != nil || errors.Is(r.err, redis.Nil) {
		r.err = nil
	}
	return r
}

// run carries out a script, and sends its text where the server does not know
// it (a new server, or SCRIPT FLUSH).
func (b *Backend) run(ctx context.Context, on processor, s *script, keys []string, args ...any) reply {
	start := time.Now()
	cmd := newCmd(ctx, "evalsha", s.code().sha, keys, args)
	switch on.(type) {
	case *batcher, forAcquires: // they say so themselves
		cmd.script = s
	default:
		lock.Blocking(ctx)
	}
	err := on.Process(ctx, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = newCmd(ctx, "eval", s.code().text, keys, args)
		err = on.Process(ctx, cmd)
	}
	var r reply
	if errors.Is(err, errNotSent) || errors.Is(err, errCut) { // the command may still be somebody's
		r.err = err
	} else {
		r = replyOf(cmd)
	}
	if (cmd.script != nil || s == scriptHeartbeat) && r.err == nil && r.by != nil {
		r.by.answers(start)
	}
	s.met(r)
	b.observe(s.name, time.Since(start), r.err)
	return r
}

// met notes that a master has answered, where no replica could: the script writes something before it says that.
func (s *script) met(r reply) {
	if r.err != nil || r.by == nil {
		return
	}
	switch s {
	case scriptAcquire:
		if fields, _ := r.val.([]any); word(fields, 0) != "LOST" {
			return
		}
	case scriptDowngrade:
		if r.val != int64(-1) && r.val != int64(0) {
			return
		}
	case scriptAttach:
		if fields, _ := r.val.([]any); word(fields, 0) == "STRANGER" {
			return
		}
	case scriptHeartbeat, scriptRenew, scriptAck, scriptRelease, scriptDescribe, scriptDetach, scriptHandle, scriptForce, scriptAdvance, scriptKept, scriptOpen:
	default:
		return
	}
	r.by.writes()
}

// call is one of many runs of a script.
type call struct {
	keys []string
	args []any
	reply
}

// runAll carries out a script many times, in pieces of one round trip each (in a
// Cluster, one a node). Each call has its own reply; the error is the first of all.
func (b *Backend) runAll(ctx context.Context, s *script, calls []call) error {
	var first error
	for len(calls) > 0 {
		n := min(len(calls), maxPipeline)
		if err := b.runPiece(ctx, s, calls[:n]); err != nil && first == nil {
			first = err
		}
		calls = calls[n:]
	}
	return first
}

// runTogether is runAll with all pieces at once, so that none waits for a node that is
// silent to another one.
func (b *Backend) runTogether(ctx context.Context, s *script, calls []call) error {
	if len(calls) <= maxPipeline { // mostly: a heartbeat wakes nobody for it
		return b.runPiece(ctx, s, calls)
	}
	var pieces errgroup.Group
	for piece := range slices.Chunk(calls, maxPipeline) {
		pieces.Go(func() error { return b.runPiece(ctx, s, piece) })
	}
	return pieces.Wait()
}

func (b *Backend) runPiece(ctx context.Context, s *script, calls []call) error {
	if len(calls) == 1 {
		calls[0].reply = b.run(ctx, b.client, s, calls[0].keys, calls[0].args...)
		return calls[0].err
	}
	lock.Blocking(ctx)
	start := time.Now()
	pipe := b.client.Pipeline()
	cmds := make([]*command, len(calls))
	for i, c := range calls {
		cmds[i] = newCmd(ctx, "evalsha", s.code().sha, c.keys, c.args)
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx) // its error is one of the commands'
	var first error
	for i, cmd := range cmds {
		calls[i].reply = replyOf(cmd)
		if redis.HasErrorPrefix(calls[i].err, "NOSCRIPT") {
			calls[i].reply = b.run(ctx, b.client, s, calls[i].keys, calls[i].args...)
		}
		s.met(calls[i].reply)
		if first == nil {
			first = calls[i].err
		}
	}
	b.observe(s.name, time.Since(start), first)
	return first
}

func word(fields []any, i int) string {
	if i >= len(fields) {
		return ""
	}
	s, _ := fields[i].(string)
	return s
}
