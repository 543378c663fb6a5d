// Package testengine starts real servers for tests and benchmarks, and breaks
// them on purpose.
//
// A [Kind] is a kind of store: [Redis], [RedisCluster], [RedisClusterReplicas], [RedisSentinel],
// [ZooKeeper], [ZooKeeperEnsemble], [Etcd], [EtcdCluster], [MariaDB], [MySQL], [Postgres]; [PostgresBouncer],
// a PostgreSQL behind PgBouncer; [RedisFakeTime], [MariaDBFakeTime], [MySQLFakeTime]
// and [PostgresFakeTime], whose clock can jump; [MariaDBPair], [MySQLPair] and
// [PostgresPair], a primary with a replica that takes over. Where its server comes from is tried in this
// order:
//
//  1. The URL in the kind's environment variable, for instance
//     LOCKSIDECAR_TEST_REDIS_URL, …_ZOOKEEPER_URL, …_ZOOKEEPER_ENSEMBLE_URL,
//     …_ETCD_URL, …_ETCD_CLUSTER_URL, …_MARIADB_URL, …_MYSQL_URL or …_POSTGRES_URL. Such a server is only used:
//     nothing here can freeze or end it.
//  2. A container, when Docker answers on this machine. LOCKSIDECAR_TEST_REDIS_IMAGE
//     and its like (…_ZOOKEEPER_IMAGE, …_ETCD_IMAGE, …_MARIADB_IMAGE, …_MYSQL_IMAGE, …_POSTGRES_IMAGE)
//     name another image than the default. PgBouncer is in none of them.
//  3. The programs on this machine (redis-server, ZooKeeper's classes and java,
//     etcd, mariadbd, mysqld, postgres, pgbouncer), on random ports of the loopback and in a temporary folder.
//     A mysqld must be MySQL's own: the one that LOCKSIDECAR_TEST_MYSQLD names,
//     or that of PATH, or the one that scripts/test-deps puts into the folder
//     locksidecar-test of the user's caches. There the empty databases are kept, too,
//     that new servers start with.
//
// LOCKSIDECAR_TEST_WITH=docker or =local leaves out the other of 2 and 3. When
// there is none, tests fail and say what to install; they are never skipped.
//
// URLs are as the product takes them: zk://HOST:PORT,…, etcd://HOST:PORT,…,
// mysql://root@HOST:PORT/locksidecar and postgres://root@HOST:PORT/locksidecar, where
// root has no password. (PostgreSQL's programs refuse to run as root, and run as
// postgres or nobody then.) There is also
// [User] with [Password], who may do everything in [Database] and nothing
// elsewhere; pairs name that one in their URL, because root may write to a
// server that is read-only.
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
// not every server can be treated so; [Pause], [Crash], [Restart], [FailOver],
// [ShiftClock], [Nodes] and [Through] are what tests call: they register the
// repair before they do the damage, and skip the test with the reason where the
// server cannot be treated so.
//
// Servers that were started here die with the process that started them,
// however it ends, and listen on the loopback only.
package testengine
