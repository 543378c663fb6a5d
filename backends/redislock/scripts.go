package redislock

import (
	"context"
	_ "embed"
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

// scripter is what both a client and its automatic pipeline can do.
type scripter interface {
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
}

// run carries out a script, and sends its text where the server does not know
// it (a new server, or SCRIPT FLUSH).
func (b *Backend) run(ctx context.Context, on scripter, s *script, keys []string, args ...any) (any, error) {
	start := time.Now()
	reply, err := on.EvalSha(ctx, s.sha, keys, args...).Result()
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = on.Eval(ctx, s.text, keys, args...).Result()
	}
	if err == redis.Nil { //nolint:errorlint // a script's nil is an answer, and go-redis returns it bare
		reply, err = nil, nil
	}
	b.observe(s.name, time.Since(start), err)
	return reply, err
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
	for _, c := range calls {
		pipe.EvalSha(ctx, s.sha, c.keys, c.args...)
	}
	done, err := pipe.Exec(ctx) // its error is the first of the commands'; they are looked at below
	if len(done) != len(calls) {
		return err
	}
	b.observe(s.name, time.Since(start), nil)
	for i, cmd := range done {
		reply, err := cmd.(*redis.Cmd).Result()
		switch {
		case err == redis.Nil: //nolint:errorlint // a script's nil is an answer, and go-redis returns it bare
			reply = nil
		case err != nil && redis.HasErrorPrefix(err, "NOSCRIPT"):
			if reply, err = b.run(ctx, b.client, s, calls[i].keys, calls[i].args...); err != nil {
				return err
			}
		case err != nil:
			b.observe(s.name, time.Since(start), err)
			return err
		}
		calls[i].reply = reply
	}
	return nil
}
