package stores

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// zooKeeperTimeout is about that of a sidecar with its defaults.
const zooKeeperTimeout = 15 * time.Second

// zooKeeperStore is one ZooKeeper. It has no connection while nobody measures with it:
// the library's pings would be counted.
type zooKeeperStore struct {
	url  string
	addr string // of the first server
	pid  int    // of that server; 0: not on this machine

	asked float64 // how often the server was asked for its numbers
}

var _ measure.Store = (*zooKeeperStore)(nil)

// ZooKeeperWords for tables.
var ZooKeeperWords = measure.Words{
	Name: "ZooKeeper", Steps: "writes", Memory: "data in ZooKeeper", Renewal: "set",
	Notified: "delete of a node, to its watcher", Answered: "delete, round trip",
}

// Names of the subjects.
const (
	ZooKeeperRecipe = "go-zookeeper/zk, Lock"
	zooKeeperNodes  = "create + delete of an ephemeral node"
)

// ConnectZooKeeper reads a URL of the form zk://host:port,…/chroot.
func ConnectZooKeeper(_ context.Context, url string) (measure.Store, error) {
	hosts, _, _ := strings.Cut(strings.TrimPrefix(url, "zk://"), "/")
	addr, _, _ := strings.Cut(hosts, ",")
	_, port, _ := strings.Cut(addr, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("find the port in %s: %w", url, err)
	}
	return &zooKeeperStore{url: url, addr: addr, pid: proc.Listener(n)}, nil
}

// URL implements measure.Store.
func (s *zooKeeperStore) URL() string { return s.url }

// Close implements measure.Store.
func (s *zooKeeperStore) Close() error { return nil }

// Subjects implements measure.Store.
func (s *zooKeeperStore) Subjects() []measure.Subject {
	return []measure.Subject{
		s.onOwnPaths(ZooKeeperRecipe, func(c *zk.Conn, path string) measure.Pair {
			l := zk.NewLock(c, path, everybody)
			return func(context.Context) error {
				if err := l.Lock(); err != nil {
					return fmt.Errorf("lock: %w", err)
				}
				if err := l.Unlock(); err != nil {
					return fmt.Errorf("unlock: %w", err)
				}
				return nil
			}
		}),
		s.onOwnPaths(zooKeeperNodes, func(c *zk.Conn, path string) measure.Pair {
			return func(context.Context) error {
				if _, err := c.Create(path, nil, zk.FlagEphemeral, everybody); err != nil {
					return fmt.Errorf("create: %w", err)
				}
				if err := c.Delete(path, -1); err != nil {
					return fmt.Errorf("delete: %w", err)
				}
				return nil
			}
		}),
	}
}

var everybody = zk.WorldACL(zk.PermAll)

const zooKeeperRoot = "/bench"

// onOwnPaths gives each caller a path of its own; all share one session, as the
// goroutines of an app do.
func (s *zooKeeperStore) onOwnPaths(name string, pair func(c *zk.Conn, path string) measure.Pair) measure.Subject {
	return measure.Subject{Name: name, Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		c, err := s.connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		var pairs []measure.Pair
		for i := range callers {
			pairs = append(pairs, pair(c, zooKeeperRoot+"/"+strings.ReplaceAll(name, "/", "-")+"-"+strconv.Itoa(i)))
		}
		return pairs, func() error { c.Close(); return nil }, nil
	}}
}

// connect opens a session and sees to it that there is a root.
func (s *zooKeeperStore) connect(ctx context.Context) (*zk.Conn, error) {
	c, events, err := zk.Connect([]string{s.addr}, zooKeeperTimeout, zk.WithLogger(quietZooKeeper{}))
	if err != nil {
		return nil, fmt.Errorf("connect to ZooKeeper: %w", err)
	}
	for c.State() != zk.StateHasSession {
		select {
		case <-events:
		case <-ctx.Done():
			c.Close()
			return nil, fmt.Errorf("connect to ZooKeeper: %w", ctx.Err())
		}
	}
	if _, err := c.Create(zooKeeperRoot, nil, 0, everybody); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		c.Close()
		return nil, fmt.Errorf("create %s: %w", zooKeeperRoot, err)
	}
	return c, nil
}

// quietZooKeeper keeps the library from writing to standard error.
type quietZooKeeper struct{}

func (quietZooKeeper) Printf(string, ...any) {}
