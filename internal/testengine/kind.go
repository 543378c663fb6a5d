package testengine

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Kind is a kind of store and how to get one.
type Kind struct {
	name    string
	urlEnv  string // variable with the URL of a server that is there already
	image   image
	install string // what brings the programs to this machine: a command

	ports int // how many ports clients connect to
	start func(ctx context.Context, m machine, ports []int) (Server, error)
}

// String is the name of the kind.
func (k *Kind) String() string { return k.name }

// image is a container image that the environment may replace.
type image struct {
	env   string
	usual string
}

func (i image) name() string {
	if s := os.Getenv(i.env); s != "" {
		return s
	}
	return i.usual
}

// The images, all in this place. That of etcd has no shell: where another one is not named,
// the program on this machine is used.
var (
	redisImage     = image{env: "LOCKSIDECAR_TEST_REDIS_IMAGE", usual: "redis:8.2"}
	zooKeeperImage = image{env: "LOCKSIDECAR_TEST_ZOOKEEPER_IMAGE", usual: "zookeeper:3.9"}
	mariaDBImage   = image{env: "LOCKSIDECAR_TEST_MARIADB_IMAGE", usual: "mariadb:11.8"}
	mySQLImage     = image{env: "LOCKSIDECAR_TEST_MYSQL_IMAGE", usual: "mysql:8.4"}
	etcdImage      = image{env: "LOCKSIDECAR_TEST_ETCD_IMAGE", usual: "quay.io/coreos/etcd:v3.6.6"}
	postgresImage  = image{env: "LOCKSIDECAR_TEST_POSTGRES_IMAGE", usual: "postgres:17"}
)

// What brings the programs to a Debian machine.
const (
	aptGet           = "apt-get install --no-install-recommends "
	installRedis     = aptGet + "redis-server"
	installZooKeeper = aptGet + "zookeeper default-jre-headless"
	installMariaDB   = aptGet + "mariadb-server"
	installPostgres  = aptGet + "postgresql"
	installEtcd      = aptGet + "etcd-server"
	installClock     = " gcc libc6-dev"
	installMySQL     = "scripts/test-deps, for Debian has it only in sid, or name a mysqld of your own in " + mysqldEnv
)

// The kinds. Redis is one server alone, RedisCluster three masters,
// RedisClusterReplicas three with a replica each,
// RedisSentinel three sentinels that watch a master and its replica;
// RedisFakeTime is one server whose clock can be shifted. ZooKeeper
// is one server alone, ZooKeeperEnsemble three; ZooKeeperSlowTicks are three whose
// tick is 2 s and not 200 ms, of ZooKeeperUneven the last one allows sessions of a
// second at most, and the leader of ZooKeeperPatient waits 20 s for a server that
// stands still, and not 2 s. MariaDB and MySQL are one server
// alone; MariaDBFakeTime and MySQLFakeTime are as well, and their clock can be
// shifted. MariaDBPair and MySQLPair are a primary and its replica behind one
// address. Postgres, PostgresFakeTime and PostgresPair are the same of PostgreSQL;
// PostgresBouncer is one server behind PgBouncer in transaction mode. Etcd is one member
// alone, EtcdCluster three.
var (
	Redis = &Kind{
		name: "Redis", urlEnv: "LOCKSIDECAR_TEST_REDIS_URL", image: redisImage, install: installRedis,
		ports: 1, start: startRedis,
	}
	RedisFakeTime = &Kind{
		name: "Redis with a clock of its own", urlEnv: Redis.urlEnv, image: redisImage, install: installRedis + installClock,
		ports: 1, start: startRedisFakeTime,
	}
	RedisCluster = &Kind{
		name: "Redis Cluster", urlEnv: "LOCKSIDECAR_TEST_REDIS_CLUSTER_URL", image: redisImage, install: installRedis,
		ports: clusterMasters, start: startRedisCluster,
	}
	RedisClusterReplicas = &Kind{
		name: "Redis Cluster with replicas", urlEnv: RedisCluster.urlEnv, image: redisImage, install: installRedis,
		ports: 2 * clusterMasters, start: startReplicatedCluster,
	}
	RedisSentinel = &Kind{
		name: "Redis Sentinel", urlEnv: "LOCKSIDECAR_TEST_REDIS_SENTINEL_URL", image: redisImage, install: installRedis,
		ports: sentinels + 2, start: startRedisSentinel,
	}
	ZooKeeper = &Kind{
		name: "ZooKeeper", urlEnv: "LOCKSIDECAR_TEST_ZOOKEEPER_URL", image: zooKeeperImage, install: installZooKeeper,
		ports: 1, start: startZooKeeper,
	}
	ZooKeeperEnsemble = &Kind{
		name: "ZooKeeper ensemble", urlEnv: "LOCKSIDECAR_TEST_ZOOKEEPER_ENSEMBLE_URL", image: zooKeeperImage, install: installZooKeeper,
		ports: zooKeepers, start: startZooKeeper,
	}
	ZooKeeperSlowTicks = &Kind{
		name: "ZooKeeper ensemble with slow ticks", urlEnv: "LOCKSIDECAR_TEST_ZOOKEEPER_SLOW_TICKS_URL", image: zooKeeperImage, install: installZooKeeper,
		ports: zooKeepers, start: startSlowTicks,
	}
	ZooKeeperUneven = &Kind{
		name: "uneven ZooKeeper ensemble", urlEnv: "LOCKSIDECAR_TEST_ZOOKEEPER_UNEVEN_URL", image: zooKeeperImage, install: installZooKeeper,
		ports: zooKeepers, start: startUneven,
	}
	ZooKeeperPatient = &Kind{
		name: "patient ZooKeeper ensemble", urlEnv: "LOCKSIDECAR_TEST_ZOOKEEPER_PATIENT_URL", image: zooKeeperImage, install: installZooKeeper,
		ports: zooKeepers, start: startPatient,
	}
	MariaDB = &Kind{
		name: "MariaDB", urlEnv: "LOCKSIDECAR_TEST_MARIADB_URL", image: mariaDBImage, install: installMariaDB,
		ports: 1, start: mariaDB.start,
	}
	MySQL = &Kind{
		name: "MySQL", urlEnv: "LOCKSIDECAR_TEST_MYSQL_URL", image: mySQLImage, install: installMySQL,
		ports: 1, start: mySQL.start,
	}
	MariaDBFakeTime = &Kind{
		name: "MariaDB with a clock of its own", urlEnv: MariaDB.urlEnv, image: mariaDBImage, install: installMariaDB + installClock,
		ports: 1, start: mariaDB.startFakeTime,
	}
	MySQLFakeTime = &Kind{
		name: "MySQL with a clock of its own", urlEnv: MySQL.urlEnv, image: mySQLImage, install: installMySQL + "; " + aptGet + "gcc libc6-dev",
		ports: 1, start: mySQL.startFakeTime,
	}
	MariaDBPair = &Kind{
		name: "MariaDB pair", urlEnv: MariaDB.urlEnv, image: mariaDBImage, install: installMariaDB,
		ports: 2, start: mariaDB.startPair,
	}
	MySQLPair = &Kind{
		name: "MySQL pair", urlEnv: MySQL.urlEnv, image: mySQLImage, install: installMySQL,
		ports: 2, start: mySQL.startPair,
	}
	Postgres = &Kind{
		name: "PostgreSQL", urlEnv: "LOCKSIDECAR_TEST_POSTGRES_URL", image: postgresImage, install: installPostgres,
		ports: 1, start: startPostgres,
	}
	PostgresFakeTime = &Kind{
		name: "PostgreSQL with a clock of its own", urlEnv: Postgres.urlEnv, image: postgresImage, install: installPostgres + installClock,
		ports: 1, start: startPostgresFakeTime,
	}
	PostgresPair = &Kind{
		name: "PostgreSQL pair", urlEnv: Postgres.urlEnv, image: postgresImage, install: installPostgres,
		ports: 2, start: startPostgresPair,
	}
	PostgresBouncer = &Kind{
		name: "PgBouncer", urlEnv: "LOCKSIDECAR_TEST_PGBOUNCER_URL", image: postgresImage, install: installPostgres + " pgbouncer",
		ports: 2, start: startPostgresBouncer,
	}
	Etcd = &Kind{
		name: "etcd", urlEnv: "LOCKSIDECAR_TEST_ETCD_URL", image: etcdImage, install: installEtcd,
		ports: 1, start: startEtcd,
	}
	EtcdCluster = &Kind{
		name: "etcd cluster", urlEnv: "LOCKSIDECAR_TEST_ETCD_CLUSTER_URL", image: etcdImage, install: installEtcd,
		ports: etcdMembers, start: startEtcd,
	}
)

// sourceEnv restricts where servers come from: "docker" or "local".
const sourceEnv = "LOCKSIDECAR_TEST_WITH"

// errPortTaken: somebody took a port between our look at it and the server's
// use of it. Another try has other ports.
var errPortTaken = errors.New("a port was taken meanwhile")

// Start starts a server of the kind, or finds the one that the environment
// names. The caller closes it. ctx bounds the start only.
func Start(ctx context.Context, k *Kind) (Server, error) {
	if url := os.Getenv(k.urlEnv); url != "" {
		s, err := attach(ctx, url, k.name+" of "+k.urlEnv)
		if err != nil {
			return nil, fmt.Errorf("use %s=%s: %w", k.urlEnv, url, err)
		}
		return s, nil
	}
	only := os.Getenv(sourceEnv)
	if only != "" && only != "docker" && only != "local" {
		return nil, fmt.Errorf("%s is %q: must be docker, local, or not set", sourceEnv, only)
	}
	var dockerErr, localErr error
	if only != "local" {
		if dockerErr = dockerHealth(ctx); dockerErr == nil {
			var s Server
			if s, dockerErr = k.startOn(ctx, func(ports []int) (machine, error) {
				return newContainer(ctx, k.image.name(), ports)
			}); dockerErr == nil {
				return s, nil
			}
		}
	}
	if only != "docker" {
		var s Server
		if s, localErr = k.startOn(ctx, newLocal); localErr == nil {
			return s, nil
		}
	}
	return nil, &startError{kind: k, docker: dockerErr, local: localErr}
}

// startOn starts a server on new machines until no port was taken meanwhile.
func (k *Kind) startOn(ctx context.Context, newMachine func(ports []int) (machine, error)) (Server, error) {
	for try := 1; ; try++ {
		s, err := k.startOnce(ctx, newMachine)
		if err == nil || try == 5 || !errors.Is(err, errPortTaken) {
			return s, err
		}
	}
}

func (k *Kind) startOnce(ctx context.Context, newMachine func(ports []int) (machine, error)) (Server, error) {
	ports, err := freePorts(ctx, k.ports)
	if err != nil {
		return nil, err
	}
	m, err := newMachine(ports)
	if err != nil {
		return nil, err
	}
	s, err := k.start(ctx, m, ports)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return s, nil
}

// startError tells a person what to do.
type startError struct {
	kind          *Kind
	docker, local error // why it could not be had from there; nil: was not tried
}

func (e *startError) Error() string {
	s := fmt.Sprintf("no %s for the tests. Any one of these helps:\n"+
		"  - install it: %s\n"+
		"  - start Docker (the image is %s; %s names another)\n"+
		"  - set %s to the URL of one that runs already\n",
		e.kind.name, e.kind.install, e.kind.image.name(), e.kind.image.env, e.kind.urlEnv)
	if e.local != nil {
		s += fmt.Sprintf("local: %v\n", e.local)
	}
	if e.docker != nil {
		s += fmt.Sprintf("Docker: %v\n", e.docker)
	}
	return s
}

func (e *startError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.local, e.docker} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
