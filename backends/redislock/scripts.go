package redislock

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/lib.lua
	libLua string
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
	//go:embed lua/force.lua
	forceLua string
	//go:embed lua/reap.lua
	reapLua string
	//go:embed lua/status.lua
	statusLua string
	//go:embed lua/open.lua
	openLua string
	//go:embed lua/heartbeat.lua
	heartbeatLua string
	//go:embed lua/drop.lua
	dropLua string
)

// script is a Lua script with the name under which it is observed.
type script struct {
	name string
	sha  string
	text string
}

func newScript(name string, parts ...string) *script {
	text := ""
	for _, p := range parts {
		text += p
	}
	return &script{name: name, sha: redis.NewScript(text).Hash(), text: text}
}

var (
	scriptAcquire   = newScript("acquire", acquireFastLua, libLua, acquireLua)
	scriptRelease   = newScript("release", releaseFastLua, libLua, releaseLua)
	scriptDowngrade = newScript("downgrade", libLua, downgradeLua)
	scriptForce     = newScript("force_release", libLua, forceLua)
	scriptReap      = newScript("reap", libLua, reapLua)
	scriptStatus    = newScript("status", libLua, statusLua)
	scriptOpen      = newScript("open_lease", openLua)
	scriptHeartbeat = newScript("heartbeat", heartbeatLua)
	scriptDrop      = newScript("drop_lease", dropLua)
)

// processor is what both a client and a line can do.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// onceCmd is sent once. The Cluster client would send it again by itself when
// the answer does not come, and then the answer to a release that was carried
// out would be that there was nothing to release.
type onceCmd struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (onceCmd) NoRetry() bool { return true }

func newCmd(ctx context.Context, how, what string, keys []string, args []any) onceCmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, how, what, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	return onceCmd{cmd}
}

// run carries out a script, and sends its text where the server does not know
// it (a new server, or SCRIPT FLUSH).
func (b *Backend) run(ctx context.Context, on processor, s *script, keys []string, args ...any) (any, error) {
	start := time.Now()
	cmd := newCmd(ctx, "evalsha", s.sha, keys, args)
	err := on.Process(ctx, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = newCmd(ctx, "eval", s.text, keys, args)
		err = on.Process(ctx, cmd)
	}
	if errors.Is(err, redis.Nil) { // a script's nil is an answer
		err = nil
	}
	b.observe(s.name, time.Since(start), err)
	return cmd.Val(), err
}

// call is one of many runs of a script.
type call struct {
	keys   []string
	args   []any
	bucket int
	reply  any
}

// runAll carries out a script many times in one round trip (in a Cluster, one a
// node). The error is the first of all calls'.
func (b *Backend) runAll(ctx context.Context, s *script, calls []call) error {
	switch len(calls) {
	case 0:
		return nil
	case 1:
		var err error
		calls[0].reply, err = b.run(ctx, b.client, s, calls[0].keys, calls[0].args...)
		return err
	}
	start := time.Now()
	pipe := b.client.Pipeline()
	cmds := make([]onceCmd, len(calls))
	for i, c := range calls {
		cmds[i] = newCmd(ctx, "evalsha", s.sha, c.keys, c.args)
		if err := pipe.Process(ctx, cmds[i]); err != nil {
			return err
		}
	}
	_, _ = pipe.Exec(ctx) // its error is one of the commands'
	var first error
	for i, cmd := range cmds {
		err := cmd.Err()
		calls[i].reply = cmd.Val()
		switch {
		case errors.Is(err, redis.Nil):
		case err != nil && redis.HasErrorPrefix(err, "NOSCRIPT"):
			calls[i].reply, err = b.run(ctx, b.client, s, calls[i].keys, calls[i].args...)
			first = cmp.Or(first, err)
		default:
			first = cmp.Or(first, err)
		}
	}
	b.observe(s.name, time.Since(start), first)
	return first
}
