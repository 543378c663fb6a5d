// Package testengine starts real servers for tests and benchmarks, and breaks
// them on purpose.
//
// A [Kind] is a kind of store: [Redis], [RedisCluster], [RedisSentinel]. Where
// its server comes from is tried in this order:
//
//  1. The URL in the kind's environment variable, for instance
//     LOCKSIDECAR_TEST_REDIS_URL. Such a server is only used: nothing here can
//     freeze or end it.
//  2. A container, when Docker answers on this machine. LOCKSIDECAR_TEST_REDIS_IMAGE
//     names another image than the default.
//  3. The program of that name on this machine (redis-server), on random ports
//     of the loopback and in a temporary folder.
//
// LOCKSIDECAR_TEST_WITH=docker or =local leaves out the other of 2 and 3. When
// there is none, tests fail and say what to install; they are never skipped.
//
// How a test package uses it:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testengine.Main(m)) }
//
//	func TestX(t *testing.T) {
//		s := testengine.Shared(t, testengine.Redis) // one for the whole package
//		p := testengine.Through(t, s)               // this client's own road to it
//		open(p.URL())
//		p.Inject(testengine.Cut)
//	}
//
// [New] gives a test a server of its own, [Start] serves everybody without a
// [testing.TB]. Faults of the server are methods of small interfaces, because
// not every server can be treated so; [Pause], [Crash], [Restart], [FailOver]
// and [Through] are what tests call: they register the repair before they do
// the damage, and skip the test with the reason where the server cannot be
// treated so.
//
// Servers that were started here die with the process that started them,
// however it ends, and listen on the loopback only.
package testengine
