package redislock

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The tests named TestScripts… run the scripts one by one, on a real server: what each answers,
// and what stands in Redis afterwards. The clock that the scripts see stands still until a test
// moves it, so a test can ask in the very microsecond in which a lease ends.

// prelude stands before a script. TIME and INFO answer what the test says, and what is published
// is written down.
const prelude = `
local server = redis
local function fake(call)
  return function(name, ...)
    if name == 'TIME' then
      local now = server.call('GET', '%[1]s')
      return {string.sub(now, 1, -7), string.sub(now, -6)}
    elseif name == 'INFO' then
      local text = table.concat(server.call('HMGET', '%[2]s', ...))
      return text .. 'server_time_usec:' .. server.call('GET', '%[1]s') .. '\r\n'
    elseif name == 'PUBLISH' then
      server.call('RPUSH', '%[3]s', table.concat({...}, ': '))
    end
    return call(name, ...)
  end
end
local redis = setmetatable({call = fake(server.call), pcall = fake(server.pcall)}, {__index = server})
`

// still is a Redis with a clock that stands still.
type still struct {
	t      *testing.T
	b      *Backend
	k      *bucket
	prefix string
	before string // the prelude
	clock  string // the keys of the prelude
	info   string
	told   string
}

const (
	second = int64(1_000_000) // microseconds, as all times in the scripts
	epoch  = 1_700_000_000 * second
	ttl    = 10 * second // of leases
	// remembered is for how long an id that was given up is remembered.
	remembered = 1000 * second
	resource   = "r"
	noTerm     = "0000000000000000000000000000000000000000"
)

// newStill gives a part of the shared Redis, with nothing in it. It is the time T there.
func newStill(t *testing.T) *still {
	t.Helper()
	return newStillOn(t, testengine.Shared(t, testengine.Redis))
}

func newStillOn(t *testing.T, server testengine.Server) *still {
	t.Helper()
	b := openAt(t, server.URL()+"?timeout=20s") // many scripts are sent at once
	t.Cleanup(func() { _ = b.Close() })
	s := &still{t: t, b: b, prefix: "still-" + string(lock.NewLeaseID())}
	keys := newKeyspace(s.prefix, bucketsAlone)
	s.k = &keys.buckets[0]
	s.clock, s.info, s.told = s.prefix+"-clock", s.prefix+"-info", s.prefix+"-told"
	s.before = fmt.Sprintf(prelude, s.clock, s.info, s.told)
	s.at(0)
	s.is("f00d", noTerm)
	return s
}

// at sets the clock to so many microseconds after T.
func (s *still) at(micros int64) {
	s.t.Helper()
	s.ok(s.b.client.Set(s.t.Context(), s.clock, epoch+micros, 0).Err())
}

// is says which server this is: its run id and its second replication id, or none.
func (s *still) is(run, term string) {
	s.t.Helper()
	replication := "# Replication\r\nrole:master\r\nmaster_replid:abcdef\r\n"
	if term != "" {
		replication += "master_replid2:" + term + "\r\n"
	}
	s.ok(s.b.client.HSet(s.t.Context(), s.info,
		"server", "# Server\r\nredis_version:7\r\nrun_id:"+run+"\r\n", "replication", replication).Err())
}

func (s *still) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// run runs a script, and gives its answer as text: NUL is |, and moments count from T.
func (s *still) run(sc *script, keys []string, args ...any) string {
	s.t.Helper()
	reply := replyOf(s.send(sc, keys, args))
	if reply.err != nil {
		return "error: " + reply.err.Error()
	}
	if fields, ok := reply.val.([]any); ok {
		switch first := word(fields, 0); {
		case first == "HELD":
			byID(fields[2:])
		case first == "CANCELLED":
			byID(fields[4:])
		case sc == scriptStatus:
			byID(fields[2].([]any))
		}
	}
	return text(reply.val)
}

// byID sorts holders, which Redis gives in any order: id, record, id, ….
func byID(pairs []any) {
	records := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		records[pairs[i].(string)] = pairs[i+1]
	}
	for i, id := range slices.Sorted(maps.Keys(records)) {
		pairs[2*i], pairs[2*i+1] = id, records[id]
	}
}

func (s *still) send(sc *script, keys []string, args []any) *command {
	cmd := newCmd(s.t.Context(), "eval", s.before+sc.code().text, keys, args)
	_ = s.b.client.Process(s.t.Context(), cmd) // the command has its error
	return cmd
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case string:
		return plainly(v)
	case []any:
		var all []string
		for _, e := range v {
			all = append(all, text(e))
		}
		return "[" + strings.Join(all, " ") + "]"
	}
	return fmt.Sprint(v)
}

var moment = regexp.MustCompile(`\bm?1[67]\d{14}\b`)

func plainly(s string) string {
	s = strings.ReplaceAll(s, "\x00", "|")
	return moment.ReplaceAllStringFunc(s, func(m string) string {
		number, own := strings.CutPrefix(m, "m")
		n, _ := strconv.ParseInt(number, 10, 64)
		seconds, micros := (n-epoch)/second, (n-epoch)%second
		said := "T"
		if own { // of a hold
			said = "mT"
		}
		if seconds != 0 {
			said += fmt.Sprintf("%+ds", seconds)
		}
		if micros != 0 {
			said += fmt.Sprintf("%+d", micros)
		}
		return said
	})
}

// of gives the keys of the scripts that use lib.lua.
func (s *still) of(lease string) []string { return s.k.of(resource, lock.LeaseID(lease)) }

// leaving gives those of the scripts with which a hold may leave its lease.
func (s *still) leaving(lease string) []string { return s.k.leaving(resource, lock.LeaseID(lease)) }

func (s *still) channel() string { return s.prefix + ":lease:" }

// open gives what opens a lease, but for how old the mark is by the server's clock.
func (s *still) open(lease string) string {
	s.t.Helper()
	return noClock(s.run(scriptOpen, []string{s.k.leases, s.k.mine + lease}, lease, ttl))
}

func noClock(reply string) string {
	if i := strings.LastIndexByte(reply, ' '); i > 0 && strings.HasPrefix(reply, "[") {
		return reply[:i] + "]"
	}
	return reply
}

// request is a request for the lock.
type request struct {
	lease, id, mode string
	who             string // "w"
	try             bool
	term            string
}

func (s *still) ask(q request) string {
	s.t.Helper()
	try, who := "0", "w"
	if q.try {
		try = "1"
	}
	if q.who != "" {
		who = q.who
	}
	args := []any{resource, q.lease, q.id, q.mode, who, try}
	if q.term != "" {
		args = append(args, q.term)
	}
	return s.run(scriptAcquire, s.of(q.lease), args...)
}

func (s *still) acquire(lease, id, mode string) string {
	s.t.Helper()
	return s.ask(request{lease: lease, id: id, mode: mode})
}

func (s *still) try(lease, id, mode string) string {
	s.t.Helper()
	return s.ask(request{lease: lease, id: id, mode: mode, try: true})
}

func (s *still) release(lease, id string) string {
	s.t.Helper()
	return s.run(scriptRelease, s.leaving(lease), resource, lease, id)
}

// giveUp releases what may not have arrived yet.
func (s *still) giveUp(lease, id string, remember int64) string {
	s.t.Helper()
	return s.run(scriptRelease, s.leaving(lease), resource, lease, id, remember)
}

func (s *still) downgrade(lease, id string) string {
	s.t.Helper()
	return s.run(scriptDowngrade, s.of(lease), resource, lease, id)
}

func (s *still) describe(lease, id, who string) string {
	s.t.Helper()
	return s.run(scriptDescribe, s.of(lease), resource, lease, id, who)
}

func (s *still) advance() string {
	s.t.Helper()
	return s.run(scriptAdvance, s.of(""), resource)
}

func (s *still) force(lease, id string, grace int64) string {
	s.t.Helper()
	return s.run(scriptForce, s.leaving(lease), resource, lease, id, grace, remembered)
}

func (s *still) ack(lease, id string, grace int64) string {
	s.t.Helper()
	return s.run(scriptAck, []string{s.k.leases, s.k.lock + resource, s.k.revoked + lease}, lease, id, member(resource, lock.HoldID(id)), grace)
}

func (s *still) beat(lease string) string {
	s.t.Helper()
	return s.beatAnd(lease, "0")
}

// beatAnd is a heartbeat of who takes the turn to clear away though none is dead: sweeps is "1".
func (s *still) beatAnd(lease, sweeps string) string {
	s.t.Helper()
	return s.run(scriptHeartbeat, s.beatKeys(lease), lease, ttl, sweeps, "1")
}

func (s *still) beatKeys(lease string) []string {
	return []string{s.k.leases, s.k.mine + lease, s.k.revoked + lease, s.k.reaper, s.k.records, s.k.recordEnds}
}

func (s *still) renew(lease string) string {
	s.t.Helper()
	return s.run(scriptRenew, []string{s.k.leases}, lease, ttl)
}

func (s *still) reap(lease, id string) string {
	s.t.Helper()
	return s.run(scriptReap, s.leaving(lease), resource, lease, id)
}

// drop ends a lease: how is "reap" where it must be dead.
func (s *still) drop(lease, how string) string {
	s.t.Helper()
	return s.run(scriptDrop, []string{s.k.leases, s.k.mine + lease, s.k.revoked + lease}, lease, how)
}

func (s *still) status(cursor, ticket string) string {
	s.t.Helper()
	return s.run(scriptStatus, s.of(""), cursor, ticket)
}

// want compares an answer.
func (s *still) want(got, want string) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("got\n\t%s\nwant\n\t%s", got, want)
	}
}

// has compares what stands in a key, by its name in lib.lua: "lock", "mine:aa", ….
func (s *still) has(key, want string) {
	s.t.Helper()
	name, lease, _ := strings.Cut(key, ":")
	at := map[string]string{
		"kept": s.k.kept, "kept ends": s.k.keptEnds,
		"leases": s.k.leases, "last": s.k.last, "reaper": s.k.reaper, "mine": s.k.mine + lease,
		"revoked": s.k.revoked + lease, "lock": s.k.lock + resource, "queue": s.k.queue + resource, "waiters": s.k.waiters + resource, "gone": s.k.gone + resource,
	}[name]
	got := s.content(at)
	if name == "leases" {
		_, got = s.leases()
	}
	if got != want {
		s.t.Errorf("%s has\n\t%s\nwant\n\t%s", key, got, want)
	}
}

// leases are the mark of the bucket and the rest of what stands beside it.
func (s *still) leases() (mark, rest string) {
	s.t.Helper()
	all := s.content(s.k.leases)
	if !strings.HasPrefix(all, "!") {
		return "", all
	}
	mark, rest, _ = strings.Cut(all, ", ")
	return strings.TrimSuffix(strings.TrimPrefix(mark, "!"), "=-1"), rest
}

func (s *still) content(key string) string {
	s.t.Helper()
	ctx, c := s.t.Context(), s.b.client
	var all []string
	switch kind := c.Type(ctx, key).Val(); kind {
	case "none":
	case "string":
		all = []string{c.Get(ctx, key).Val()}
	case "zset":
		for _, z := range c.ZRangeWithScores(ctx, key, 0, -1).Val() {
			all = append(all, fmt.Sprintf("%s=%.0f", z.Member, z.Score))
		}
	case "hash":
		m := c.HGetAll(ctx, key).Val()
		for _, f := range slices.Sorted(maps.Keys(m)) {
			all = append(all, f+"="+m[f])
		}
	default:
		s.t.Fatalf("%s is a %s", key, kind)
	}
	return plainly(strings.Join(all, ", "))
}

// free checks that nothing is left of the resource and of these leases' holds and waiters.
func (s *still) free(leases ...string) {
	s.t.Helper()
	for _, key := range []string{"lock", "queue", "waiters"} {
		s.has(key, "")
	}
	for _, l := range leases {
		s.empty(l)
	}
}

// empty checks that a lease has nothing.
func (s *still) empty(lease string) {
	s.t.Helper()
	s.has("mine:"+lease, "")
	s.has("revoked:"+lease, "")
}

// hears compares what was published since the last time.
func (s *still) hears(want ...string) {
	s.t.Helper()
	if got := s.published(); !slices.Equal(got, want) {
		s.t.Errorf("published %q, want %q", got, want)
	}
}

// hearsAll does so in any order.
func (s *still) hearsAll(want ...string) {
	s.t.Helper()
	if got := slices.Sorted(slices.Values(s.published())); !slices.Equal(got, want) {
		s.t.Errorf("published %q, want %q", got, want)
	}
}

func (s *still) published() (got []string) {
	s.t.Helper()
	pipe := s.b.client.TxPipeline()
	all := pipe.LRange(s.t.Context(), s.told, 0, -1)
	pipe.Del(s.t.Context(), s.told)
	_, err := pipe.Exec(s.t.Context())
	s.ok(err)
	for _, m := range all.Val() {
		got = append(got, plainly(strings.TrimPrefix(m, s.channel())))
	}
	return got
}

// held is how many hold the lock, and wait for it.
func (s *still) held() (holders, waiters int64) {
	s.t.Helper()
	for _, f := range s.b.client.HKeys(s.t.Context(), s.k.lock+resource).Val() {
		if strings.HasPrefix(f, "h") {
			holders++
		}
	}
	return holders, s.b.client.ZCard(s.t.Context(), s.k.queue+resource).Val()
}

// life is how long a key is kept.
func (s *still) life(key string) time.Duration {
	s.t.Helper()
	d, err := s.b.client.PTTL(s.t.Context(), key).Result()
	s.ok(err)
	return d
}

// crowd has many ask for the lock in one mode, with the lease, and gives their ids.
func (s *still) crowd(n int, lease, mode, who string) []string {
	s.t.Helper()
	ids := make([]string, n)
	_, err := s.b.client.Pipelined(s.t.Context(), func(p redis.Pipeliner) error {
		for i := range n {
			ids[i] = fmt.Sprintf("%s-%d", lease, i)
			_ = p.Process(s.t.Context(), newCmd(s.t.Context(), "eval", s.before+scriptAcquire.code().text, s.of(lease),
				[]any{resource, lease, ids[i], mode, who, "0"}))
		}
		return nil
	})
	s.ok(err)
	return ids
}
