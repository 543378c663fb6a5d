package testengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// zooKeepers is how many servers an ensemble has: the least that keeps a
// majority when one is lost.
const zooKeepers = 3

// startZooKeeper starts one server, or an ensemble when there are more ports.
func startZooKeeper(ctx context.Context, m machine, ports []int) (Server, error) {
	return startZooKeeperWith(ctx, m, ports, func(int) []string { return nil })
}

// startSlowTicks starts an ensemble with the usual tick, and with sessions that may
// be shorter than that.
func startSlowTicks(ctx context.Context, m machine, ports []int) (Server, error) {
	return startZooKeeperWith(ctx, m, ports, func(int) []string { return []string{"tickTime=2000", "initLimit=5", "syncLimit=2"} })
}

// startPatient starts an ensemble whose leader waits for a server that stands still
// for as long as a test may let it.
func startPatient(ctx context.Context, m machine, ports []int) (Server, error) {
	return startZooKeeperWith(ctx, m, ports, func(int) []string { return []string{"syncLimit=100"} })
}

// startUneven starts an ensemble whose last server allows shorter sessions than the
// others.
func startUneven(ctx context.Context, m machine, ports []int) (Server, error) {
	return startZooKeeperWith(ctx, m, ports, func(i int) []string {
		if i < len(ports)-1 {
			return nil
		}
		return []string{"maxSessionTimeout=1000"}
	})
}

// startZooKeeperWith starts servers that each have settings of their own.
func startZooKeeperWith(ctx context.Context, m machine, ports []int, settings func(i int) []string) (Server, error) {
	classes, err := find(ctx, m, "ZooKeeper", findZooKeeper)
	if err != nil {
		return nil, err
	}
	archive := zooKeeperClasses(ctx, m, classes)
	s := &store{m: m, kind: "one server", ports: ports}
	var peers []string
	if len(ports) > 1 {
		s.kind = fmt.Sprintf("ensemble of %d", len(ports))
		between, err := freePorts(ctx, 2*len(ports))
		if err != nil {
			return nil, err
		}
		for i := range ports {
			peers = append(peers, fmt.Sprintf("server.%d=%s:%d:%d", i+1, loopback, between[2*i], between[2*i+1]))
		}
	}
	var all []string
	for i, p := range ports {
		n := &node{m: m, dir: fmt.Sprintf("zookeeper%d", i+1), port: p}
		z := zooKeeperServer{}
		if z.dir, err = writeZooKeeper(ctx, n, i+1, append(settings(i), peers...)); err != nil {
			return nil, err
		}
		args := zooKeeperArgs(classes, archive...)
		n.program, n.argv = z, func(context.Context) ([]string, error) { return args, nil }
		s.nodes = append(s.nodes, n)
		all = append(all, n.Addr())
	}
	s.url = "zk://" + strings.Join(all, ",")
	return s, s.Start(ctx)
}

// findZooKeeper prints the class path of ZooKeeper: of the official release,
// which the official image has, or of Debian's package.
const findZooKeeper = `
command -v java >/dev/null || exit 0
home=$(command -v zkServer.sh) && home=$(dirname "$(dirname "$(readlink -f "$home")")")
for jar in "$home"/lib/zookeeper-[0-9]*.jar /apache-zookeeper-*/lib/zookeeper-[0-9]*.jar; do
	if [ -e "$jar" ]; then
		echo "$(dirname "$jar")/*"
		exit 0
	fi
done
java=/usr/share/java
if [ -e $java/zookeeper.jar ]; then
	echo $java/zookeeper.jar:$java/slf4j-log4j12.jar:$java/log4j-1.2.jar
fi`

// writeZooKeeper writes the files of a server, with more settings that may replace
// the usual ones, and returns the absolute path of
// its folder.
func writeZooKeeper(ctx context.Context, n *node, id int, more []string) (string, error) {
	conf := []string{
		// The server's unit of time: sessions expire at its multiples.
		"tickTime=200",
		// Session timeouts that clients may have, in ms. By default 2 and 20 ticks.
		"minSessionTimeout=400",
		"maxSessionTimeout=60000",
		// Ticks that a follower may take to join, and may lag behind.
		"initLimit=50",
		"syncLimit=10",
		"dataDir=./data",
		fmt.Sprintf("clientPort=%d", n.port),
		"clientPortAddress=" + n.m.bind(),
		"maxClientCnxns=0", // all tests are one client by their address
		"forceSync=" + forceSync(),
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
	}
	files := map[string]string{
		"zoo.cfg":   strings.Join(append(conf, more...), "\n") + "\n",
		"data/myid": fmt.Sprintf("%d\n", id),
		// One of them is asked, which depends on where the server came from.
		"log4j.properties": "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n" +
			"log4j.appender.out.layout=org.apache.log4j.PatternLayout\nlog4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n\n",
		"logback.xml": `<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>` +
			`<pattern>%d %p %c: %m%n</pattern></encoder></appender><root level="WARN"><appender-ref ref="out"/></root></configuration>`,
	}
	script := fmt.Sprintf("mkdir -p %[1]s/data && cd %[1]s && pwd -P", quote(n.dir))
	for name, text := range files {
		script += fmt.Sprintf(" && printf %%s %s >%s", quote(text), name)
	}
	dir, err := n.m.sh(ctx, script)
	return strings.TrimSpace(dir), err
}

// forceSync: what is written outlives a kill -9 without it, though not the machine.
func forceSync() string {
	if onDisk {
		return "yes"
	}
	return "no"
}

// zooKeeperArgs is how to start a server, with more options of Java.
func zooKeeperArgs(classes string, more ...string) []string {
	var threads []string
	if !onDisk {
		// A request is read and carried out by the threads that hear of it, and not handed to others. Between few
		// processors that takes a third of a server's processor time. Programs that measure leave it as it is.
		threads = []string{"-Dzookeeper.nio.numWorkerThreads=0", "-Dzookeeper.commitProcessor.numWorkerThreads=0"}
	}
	return slices.Concat([]string{
		// For a process that starts fast and lives for seconds.
		"java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dzookeeper.preAllocSize=1024", // KiB; the transaction log grows by 64 MiB otherwise
		// Empty container nodes vanish within a second: what may happen in
		// production once a minute must happen in tests.
		"-Dznode.container.checkIntervalMs=500", "-Dznode.container.maxPerMinute=1000000",
		// Candidates talk to each other at least twice a second; otherwise the
		// pauses between grow to a minute.
		"-Dzookeeper.fastleader.maxNotificationInterval=500",
	}, threads, more, []string{
		"-cp", classes + ":.",
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", "./zoo.cfg",
	})
}

// zooKeeperServer is the program, in an absolute folder of its own.
type zooKeeperServer struct{ dir string }

func (zooKeeperServer) String() string { return "ZooKeeper" }

// ready implements program: the server is alone or in a majority.
func (z zooKeeperServer) ready(ctx context.Context, n *node) (string, error) {
	env, err := zooKeeperSays(ctx, n.Addr(), "envi")
	if err != nil {
		return "", err
	}
	switch dir, complete := lineOf(env, "\nuser.dir="); {
	case !complete: // it closes connections when it joins the others or leaves them
		return "", errors.New("ask ZooKeeper for envi: the answer has no end")
	case dir != z.dir:
		return "", stop(errPortTaken)
	}
	state, err := zooKeeperSays(ctx, n.Addr(), "srvr")
	if err != nil {
		return "", err
	}
	if !strings.Contains(state, "\nMode: ") {
		return "", errors.New(strings.TrimSpace(state))
	}
	// Zookeeper version: 3.8.0-5a02a05…, built on …
	version, _, _ := strings.Cut(fields(state)["Zookeeper version"], "-")
	return strings.TrimSpace(version), nil
}

// lineOf is what stands behind key to the end of its line; false: it is not there, or has no end.
func lineOf(text, key string) (string, bool) {
	_, rest, found := strings.Cut(text, key)
	if !found {
		return "", false
	}
	line, _, found := strings.Cut(rest, "\n")
	return line, found
}

// keep implements program: it writes to disk before it answers.
func (zooKeeperServer) keep(context.Context, *node) error { return nil }

// drop implements program.
func (zooKeeperServer) drop(ctx context.Context, n *node) error {
	_, err := n.m.sh(ctx, "rm -rf "+quote(n.dir+"/data/version-2"))
	return err
}

// zooKeeperSays is the answer to a word of four letters.
func zooKeeperSays(ctx context.Context, addr, word string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("ask ZooKeeper for %s: %w", word, err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second)) // fails only on closed connections
	var text []byte
	if _, err = io.WriteString(c, word); err == nil {
		text, err = io.ReadAll(c)
	}
	if err != nil {
		return "", fmt.Errorf("ask ZooKeeper for %s: %w", word, err)
	}
	return string(text), nil
}
