package torture

import (
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/torture/schedule"
)

// plan is a store to torture, and how.
type plan struct {
	name    string
	kind    *testengine.Kind // nil: embedded
	shards  int              // so many servers of the kind, each a shard of the store; 0: one that is the store
	options string           // of the store's URL
	sides   int
	apps    int
	mute    string // what a connection for pushes says first; empty: there are none
	faults  []schedule.Kind
	shift   time.Duration // see schedule.Options
	// slack is for how much longer than a TTL the locks of a dead sidecar stay, or a
	// server that has just started grants nothing.
	slack time.Duration

	permits  bool            // apps take permits
	minHold  bool            // and locks with min_hold
	detaches bool            // and detach them
	forgets  []schedule.Kind // faults after which the store need not know what it kept
	reigns   bool            // nor does it where another server of Redis has become the master: see watchReign
}

// timeout of requests to the store. Much shorter than the TTL, so that a sidecar that
// was cut off has time to come back.
const timeout = "timeout=600ms"

// The clocks of a database that jump move the end of what it keeps by as much. So there apps take no locks with
// min_hold, and detach none.
var plans = []plan{
	{name: "Embedded", sides: 1, apps: 6, permits: true, minHold: true, detaches: true},
	{
		name: "Redis", kind: testengine.Redis, options: "?" + timeout, sides: 3, apps: 6, mute: "subscribe",
		faults:  []schedule.Kind{schedule.PauseStore, schedule.RestartStore, schedule.EmptyStore},
		slack:   ttl, // restart-grace
		permits: true, minHold: true, detaches: true, forgets: []schedule.Kind{schedule.EmptyStore},
	},
	{
		name: "RedisClock", kind: testengine.RedisFakeTime, options: "?" + timeout, sides: 3, apps: 6, mute: "subscribe",
		faults: []schedule.Kind{schedule.ShiftClock, schedule.PauseStore, schedule.RestartStore},
		// Ahead would end leases early, and docs/stores/redis.md says so.
		shift: -500 * time.Millisecond, slack: ttl,
		permits: true, minHold: true, detaches: true,
	},
	{
		name: "RedisSentinel", kind: testengine.RedisSentinel, options: "?" + timeout, sides: 3, apps: 6, mute: "subscribe",
		faults:  []schedule.Kind{schedule.PauseStore, schedule.FailOver, schedule.LoseOver},
		slack:   ttl,
		permits: true, minHold: true, detaches: true, reigns: true,
	},
	{
		name: "RedisCluster", kind: testengine.RedisCluster, options: "?" + timeout, sides: 3, apps: 6, mute: "subscribe",
		faults:  []schedule.Kind{schedule.PauseNode, schedule.RestartNode, schedule.RestartStore},
		slack:   ttl + 3*time.Second, // the nodes must find each other
		permits: true, minHold: true, detaches: true,
	},
	{
		name: "Shards", kind: testengine.Redis, shards: 3, options: "&" + timeout, sides: 3, apps: 6, mute: "subscribe",
		faults:  []schedule.Kind{schedule.PauseStore, schedule.RestartStore, schedule.EmptyStore}, // of one shard at a time
		slack:   ttl + 3*time.Second,                                                              // a sidecar tries to open a lease each 2 s
		permits: true, minHold: true, detaches: true, forgets: []schedule.Kind{schedule.EmptyStore},
	},
	{
		name: "ZooKeeper", kind: testengine.ZooKeeperEnsemble, options: "?tick=200ms&" + timeout, sides: 3, apps: 6,
		faults:  []schedule.Kind{schedule.PauseNode, schedule.RestartNode, schedule.PauseStore, schedule.RestartStore},
		slack:   ttl/2 + time.Second, // sessions last for 1.5 TTLs, and a leader is elected
		permits: true, minHold: true, detaches: true,
	},
	{
		name: "Etcd", kind: testengine.EtcdCluster, options: "?" + timeout, sides: 3, apps: 6,
		faults:  []schedule.Kind{schedule.PauseNode, schedule.RestartNode, schedule.PauseStore, schedule.RestartStore},
		slack:   ttl + 5*time.Second, // others look for a TTL, and a leader is elected
		permits: true, minHold: true, detaches: true,
	},
	{
		name: "MariaDB", kind: testengine.MariaDBPair, options: "?guard=false&" + timeout, sides: 3, apps: 6, mute: "GET_LOCK",
		faults:  []schedule.Kind{schedule.PauseStore, schedule.FailOver},
		slack:   2 * ttl, // others look for a TTL, and failover-grace
		permits: true, minHold: true, detaches: true,
	},
	{
		name: "MariaDBClock", kind: testengine.MariaDBFakeTime, options: "?guard=false&" + timeout, sides: 3, apps: 6, mute: "GET_LOCK",
		faults: []schedule.Kind{schedule.PauseStore, schedule.RestartStore, schedule.ShiftClock},
		shift:  time.Hour, slack: ttl,
		permits: true,
	},
	{
		name: "MySQL", kind: testengine.MySQLFakeTime, options: "?guard=false&" + timeout, sides: 3, apps: 6, mute: "GET_LOCK",
		faults: []schedule.Kind{schedule.PauseStore, schedule.RestartStore, schedule.ShiftClock},
		shift:  time.Hour, slack: ttl,
		permits: true,
	},
	{
		name: "PostgreSQL", kind: testengine.PostgresFakeTime, options: "?guard=false&" + timeout, sides: 3, apps: 6, mute: "LISTEN",
		faults: []schedule.Kind{schedule.PauseStore, schedule.RestartStore, schedule.ShiftClock},
		shift:  time.Hour, slack: ttl,
		permits: true,
	},
	{
		name: "PostgreSQLPair", kind: testengine.PostgresPair, options: "?guard=false&" + timeout, sides: 3, apps: 6, mute: "LISTEN",
		faults:  []schedule.Kind{schedule.PauseStore, schedule.FailOver},
		slack:   2 * ttl,
		permits: true, minHold: true, detaches: true, forgets: []schedule.Kind{schedule.FailOver}, // its replica lags behind
	},
}
