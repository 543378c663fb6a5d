package testengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

// client uses a store as the product would.
type client interface {
	put(ctx context.Context, key, value string) error
	get(ctx context.Context, key string) (string, error) // "" for none
}

func newClient(t *testing.T, url string) client {
	t.Helper()
	before, hosts, after := splitURL(url)
	switch scheme, _, _ := strings.Cut(before, "://"); scheme {
	case "zk":
		return &zkClient{hosts: hosts}
	case "etcd":
		return etcdClient{hosts}
	case "mysql":
		return newSQLClient(t, url)
	case "postgres":
		return &pgClient{url + "?sslmode=disable&connect_timeout=1&default_query_exec_mode=exec"}
	default:
		c := redis.NewUniversalClient(&redis.UniversalOptions{
			Addrs: hosts, ContextTimeoutEnabled: true, DialTimeout: time.Second,
			ReadTimeout: time.Second, MaxRetries: -1, MaxRedirects: 1,
			MasterName: strings.TrimPrefix(after, "/"), IsClusterMode: scheme == "redis+cluster",
		})
		t.Cleanup(func() { closed(t, c) })
		return &redisClient{c}
	}
}

func closed(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

type redisClient struct{ c redis.UniversalClient }

func (c *redisClient) put(ctx context.Context, key, value string) error {
	return c.c.Set(ctx, key, value, 0).Err()
}

func (c *redisClient) get(ctx context.Context, key string) (string, error) {
	value, err := c.c.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return value, err
}

// zkClient has a session for each question, because the driver knows no ctx.
type zkClient struct{ hosts []string }

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (c *zkClient) do(ctx context.Context, f func(*zk.Conn) error) error {
	conn, _, err := zk.Connect(c.hosts, 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, conn.Close)()
	defer conn.Close()
	return f(conn)
}

func (c *zkClient) put(ctx context.Context, key, value string) error {
	return c.do(ctx, func(conn *zk.Conn) error {
		_, err := conn.Set("/"+key, []byte(value), -1)
		if errors.Is(err, zk.ErrNoNode) {
			_, err = conn.Create("/"+key, []byte(value), 0, zk.WorldACL(zk.PermAll))
		}
		return err
	})
}

func (c *zkClient) get(ctx context.Context, key string) (value string, err error) {
	err = c.do(ctx, func(conn *zk.Conn) error {
		data, _, err := conn.Get("/" + key)
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		value = string(data)
		return err
	})
	return value, err
}

// etcdClient asks the members in turn.
type etcdClient struct{ hosts []string }

func (c etcdClient) do(ctx context.Context, path string, question map[string][]byte, answer any) (err error) {
	path += "?" + string(question["key"]) // which a proxy can see there; in JSON it is in base64
	for i, h := range c.hosts {
		limit, cancel := ctx, context.CancelFunc(func() {})
		if i < len(c.hosts)-1 {
			limit, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
		}
		err = etcdAsks(limit, h, path, question, answer)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

func (c etcdClient) put(ctx context.Context, key, value string) error {
	return c.do(ctx, "/v3/kv/put", map[string][]byte{"key": []byte(key), "value": []byte(value)}, &struct{}{})
}

func (c etcdClient) get(ctx context.Context, key string) (string, error) {
	var found struct{ Kvs []struct{ Value []byte } }
	err := c.do(ctx, "/v3/kv/range", map[string][]byte{"key": []byte(key)}, &found)
	if err != nil || len(found.Kvs) == 0 {
		return "", err
	}
	return string(found.Kvs[0].Value), nil
}

type sqlClient struct{ db *sql.DB }

func newSQLClient(t *testing.T, url string) *sqlClient {
	t.Helper()
	before, hosts, after := splitURL(url)
	dsn := strings.TrimPrefix(before, "mysql://") + "tcp(" + hosts[0] + ")" + after + "?interpolateParams=true&timeout=1s"
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { closed(t, db) })
	return &sqlClient{db}
}

func (c *sqlClient) put(ctx context.Context, key, value string) error {
	_, err := c.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS pairs (k VARCHAR(200) PRIMARY KEY, v TEXT)")
	if err == nil {
		_, err = c.db.ExecContext(ctx, "REPLACE INTO pairs VALUES (?, ?)", key, value)
	}
	return err
}

func (c *sqlClient) get(ctx context.Context, key string) (value string, err error) {
	err = c.db.QueryRowContext(ctx, "SELECT v FROM pairs WHERE k = ?", key).Scan(&value)
	const noTable = 1146
	if e := (*mysql.MySQLError)(nil); errors.Is(err, sql.ErrNoRows) || errors.As(err, &e) && e.Number == noTable {
		return "", nil
	}
	return value, err
}

// pgClient has a connection for each question.
type pgClient struct{ url string }

func (c *pgClient) do(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		return err
	}
	err = f(conn)
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

func (c *pgClient) put(ctx context.Context, key, value string) error {
	return c.do(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS pairs (k VARCHAR(200) PRIMARY KEY, v TEXT)")
		if err == nil {
			_, err = conn.Exec(ctx, "INSERT INTO pairs VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v=EXCLUDED.v", key, value)
		}
		return err
	})
}

func (c *pgClient) get(ctx context.Context, key string) (value string, err error) {
	err = c.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT v FROM pairs WHERE k = $1", key).Scan(&value)
	})
	const noTable = "42P01"
	if e := (*pgconn.PgError)(nil); errors.Is(err, pgx.ErrNoRows) || errors.As(err, &e) && e.Code == noTable {
		return "", nil
	}
	return value, err
}

// within bounds one question to a server.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// keys are spread over the nodes of a cluster.
func keys(t *testing.T) []string {
	t.Helper()
	name := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())
	var all []string
	for i := range 5 {
		all = append(all, fmt.Sprintf("%s-%d", name, i))
	}
	return all
}

func set(t *testing.T, c client, value string) {
	t.Helper()
	for _, k := range keys(t) {
		if err := c.put(within(t, 5*time.Second), k, value); err != nil {
			t.Fatal(err)
		}
	}
}

// wantAll checks all keys, "" for none. The client may need a moment to find
// its way back to the server.
func wantAll(t *testing.T, c client, value string) {
	t.Helper()
	for _, k := range keys(t) {
		var got string
		if err := poll(within(t, 20*time.Second), func() error {
			var err error
			got, err = c.get(within(t, time.Second), k)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if got != value {
			t.Fatalf("%s is %q; want %q", k, got, value)
		}
	}
}

func wantError(t *testing.T, c client) {
	t.Helper()
	if err := c.put(within(t, 300*time.Millisecond), "x", ""); err == nil {
		t.Fatal("the server answers")
	}
}
