package testengine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
)

// postgresPair is a primary and its replica behind one address, which leads to
// the primary. The address is a proxy's that changes its target when the replica
// takes over.
type postgresPair struct{ pair }

var _ interface {
	Server
	Pauser
	Crasher
	Failoverer
	Proxier
} = (*postgresPair)(nil)

// startPostgresPair starts a primary and its replica.
func startPostgresPair(ctx context.Context, m machine, ports []int) (Server, error) {
	p := &postgresPair{pair{s: &store{m: m}}}
	for i, port := range ports {
		n, err := postgresNode(ctx, m, fmt.Sprintf("server%d", i+1), port)
		if err != nil {
			return nil, err
		}
		p.s.nodes = append(p.s.nodes, n)
	}
	var err error
	if p.road, err = NewProxy(ctx, p.s.nodes[0].Addr()); err != nil {
		return nil, err
	}
	if err := p.Start(ctx); err != nil {
		return nil, errors.Join(err, p.road.Close())
	}
	return p, nil
}

// URL implements Server.
func (p *postgresPair) URL() string { return postgresPairURL(p.road.Addr()) }

func postgresPairURL(addr string) string { return postgresURL(User+":"+Password, addr) }

// Close implements Server.
func (p *postgresPair) Close() error { return errors.Join(p.road.Close(), closePostgres(p.s)) }

// Start implements Crasher. A replica that does not follow is made again from the
// primary: it may have gone another way.
func (p *postgresPair) Start(ctx context.Context) error {
	primary, replica := p.roles()
	if err := primary.Start(ctx); err != nil {
		return err
	}
	if p.behind(ctx, "0/0") == nil {
		return p.Healthy(ctx)
	}
	err := replica.Crash(ctx, KeepData)
	if err == nil {
		err = copyPostgres(ctx, replica, primary, "-R")
	}
	if err == nil {
		err = replica.Start(ctx)
	}
	if err != nil {
		return err
	}
	return p.Healthy(ctx)
}

// copyPostgres replaces the data of a node that does not run by a copy of
// another's.
func copyPostgres(ctx context.Context, to, from *node, more string) error {
	t := to.program.(*postgresServer)
	if _, err := to.m.sh(ctx, removePostgresData(to)); err != nil {
		return err
	}
	_, err := to.m.sh(ctx, fmt.Sprintf(`cd %s && %s %s/pg_basebackup -D data -d 'host=%s port=%d user=root sslmode=disable' -c fast --no-sync %s`,
		quote(to.dir), strings.Join(t.as, " "), t.bin, loopback, from.port, more))
	return err
}

// Proxy implements Proxier.
func (p *postgresPair) Proxy(ctx context.Context) (*Proxy, error) {
	return faultproxy.To(ctx, p.road.Addr(), faultproxy.Options{URL: postgresPairURL})
}

// Healthy implements Failoverer: the replica has all that the primary has now.
func (p *postgresPair) Healthy(ctx context.Context) error {
	primary, _ := p.roles()
	var now string
	if err := postgresDo(ctx, primary.Addr(), func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&now)
	}); err != nil {
		return err
	}
	return poll(ctx, func() error { return p.behind(ctx, now) })
}

// behind says why the replica lacks what the primary had then.
func (p *postgresPair) behind(ctx context.Context, lsn string) error {
	_, replica := p.roles()
	return postgresDo(ctx, replica.Addr(), func(c *pgx.Conn) error {
		var level bool
		err := c.QueryRow(ctx, "SELECT pg_is_in_recovery() AND COALESCE(pg_last_wal_replay_lsn()>=$1::text::pg_lsn, FALSE)"+
			" AND EXISTS (SELECT 1 FROM pg_stat_wal_receiver WHERE status='streaming')", lsn).Scan(&level)
		if err == nil && !level {
			err = fmt.Errorf("the replica has not reached %s yet", lsn)
		}
		return err
	})
}

// FailOver implements Failoverer.
func (p *postgresPair) FailOver(ctx context.Context, d Data) error {
	if err := p.Healthy(ctx); err != nil {
		return fmt.Errorf("wait for a replica that could take over: %w", err)
	}
	old, replica := p.roles()
	if err := old.Crash(ctx, KeepData); err != nil {
		return fmt.Errorf("prepare the failover: %w", err)
	}
	if err := promotePostgres(ctx, replica); err != nil {
		return err
	}
	if d == DropData { // a replica that lags behind, taken to the extreme
		if err := postgresExec(ctx, replica.Addr(), "DROP SCHEMA public CASCADE", "CREATE SCHEMA public AUTHORIZATION "+User); err != nil {
			return fmt.Errorf("forget the data: %w", err)
		}
	}
	p.primary = 1 - p.primary
	p.road.Retarget(replica.Addr())
	return p.Start(ctx)
}

// promotePostgres makes a replica a primary. What it applies in that moment may cancel the request, and the look.
func promotePostgres(ctx context.Context, n *node) error {
	const promoted = "DO $$ BEGIN IF pg_is_in_recovery() THEN RAISE 'it is still a replica'; END IF; END $$"
	ctx, cancel := context.WithTimeout(ctx, promotion)
	defer cancel()
	err := poll(ctx, func() error {
		asked := postgresExec(ctx, n.Addr(), "SELECT CASE WHEN pg_is_in_recovery() THEN pg_promote(false) END")
		return errors.Join(asked, postgresExec(ctx, n.Addr(), promoted))
	})
	if err != nil {
		return fmt.Errorf("promote the replica: %w", err)
	}
	return nil
}

// promotion bounds how long that takes.
const promotion = 30 * time.Second

// PostgresReplica is a road to the replica of a pair, which takes no writes.
func PostgresReplica(t testing.TB, s Server) *Proxy {
	t.Helper()
	_, replica := s.(*postgresPair).roles()
	road, err := faultproxy.To(t.Context(), replica.Addr(), faultproxy.Options{URL: postgresPairURL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = road.Close() }) // never fails
	return road
}

// ForkPostgres starts another PostgreSQL with all that a server alone knows at
// this moment: a replica that was cut off and became a primary.
func ForkPostgres(t testing.TB, s Server) Server {
	t.Helper()
	of := Nodes(t, s)[0].(*node)
	fork := New(t, Postgres)
	ctx, cancel := context.WithTimeout(t.Context(), forkTimeout)
	defer cancel()
	n := Nodes(t, fork)[0].(*node)
	err := n.Crash(ctx, KeepData)
	if err == nil {
		err = copyPostgres(ctx, n, of, "-R")
	}
	if err == nil {
		err = n.Start(ctx)
	}
	if err == nil {
		err = promotePostgres(ctx, n)
	}
	if err != nil {
		t.Fatalf("fork %s: %v", s.Origin(), err)
	}
	return fork
}
