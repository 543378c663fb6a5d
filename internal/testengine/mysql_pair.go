package testengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
)

// pairStore is a primary and its replica behind one address, which leads to the
// primary. The address is a proxy's that changes its target when the replica
// takes over.
//
// Its URL names User and not root, who may write to a server that is read-only.
type pairStore struct {
	*mysqlFlavour
	pair
}

// pair is a primary and its replica behind one address.
type pair struct {
	s       *store
	road    *Proxy
	primary int // index in s.nodes
}

// Origin implements Server.
func (p *pair) Origin() string { return p.s.nodes[0].Origin() + ", primary and replica" }

// Pause implements Pauser.
func (p *pair) Pause(ctx context.Context) error { return p.s.Pause(ctx) }

// Resume implements Pauser.
func (p *pair) Resume(ctx context.Context) error { return p.s.Resume(ctx) }

// Crash implements Crasher.
func (p *pair) Crash(ctx context.Context, d Data) error { return p.s.Crash(ctx, d) }

func (p *pair) roles() (primary, replica *node) {
	return p.s.nodes[p.primary], p.s.nodes[1-p.primary]
}

var _ interface {
	Server
	Pauser
	Crasher
	Failoverer
	Proxier
} = (*pairStore)(nil)

// replication is how to tell a server of a flavour its part.
type replication struct {
	args          []string // to keep a log that a replica can follow
	follow        []string // make it a replica of the server on port %d, which is on the loopback
	leave         []string // make it a server alone again
	protect, open []string // read-only and not
	position      string   // what it has
	await         string   // wait for that, 10 s at most
	reached       string   // what await answers when it was reached
	state         string
	running       []string // columns of state that say Yes
}

var (
	mySQLReplication = replication{
		args: []string{"--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--log-bin=bin", "--relay-log=relay", "--skip-replica-start"},
		follow: []string{
			"STOP REPLICA",
			"CHANGE REPLICATION SOURCE TO SOURCE_HOST='" + loopback + "', SOURCE_PORT=%d, SOURCE_USER='root', " +
				"SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1, GET_SOURCE_PUBLIC_KEY=1",
			"START REPLICA",
		},
		leave:    []string{"STOP REPLICA", "RESET REPLICA ALL"},
		protect:  []string{"SET GLOBAL super_read_only=ON"},
		open:     []string{"SET GLOBAL super_read_only=OFF", "SET GLOBAL read_only=OFF"},
		position: "SELECT @@GLOBAL.gtid_executed",
		await:    "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, 10)", reached: "0",
		state: "SHOW REPLICA STATUS", running: []string{"Replica_IO_Running", "Replica_SQL_Running"},
	}
	mariaDBReplication = replication{
		args: []string{"--log-bin=bin", "--relay-log=relay", "--log-slave-updates=ON", "--skip-slave-start"},
		follow: []string{
			"STOP SLAVE",
			// What it has written itself while it was the primary it need not hear of.
			"SET GLOBAL gtid_slave_pos=@@GLOBAL.gtid_current_pos",
			"CHANGE MASTER TO MASTER_HOST='" + loopback + "', MASTER_PORT=%d, MASTER_USER='root', " +
				"MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
			"START SLAVE",
		},
		leave:    []string{"STOP SLAVE", "RESET SLAVE ALL"},
		protect:  []string{"SET GLOBAL read_only=ON"},
		open:     []string{"SET GLOBAL read_only=OFF"},
		position: "SELECT @@GLOBAL.gtid_current_pos",
		await:    "SELECT MASTER_GTID_WAIT(?, 10)", reached: "0",
		state: "SHOW SLAVE STATUS", running: []string{"Slave_IO_Running", "Slave_SQL_Running"},
	}
)

// startPair starts a primary and its replica.
func (f *mysqlFlavour) startPair(ctx context.Context, m machine, ports []int) (Server, error) {
	p := &pairStore{mysqlFlavour: f, pair: pair{s: &store{m: m}}}
	for i, port := range ports {
		n, err := f.node(ctx, m, fmt.Sprintf("server%d", i+1), port,
			append([]string{"--server-id=" + strconv.Itoa(i+1)}, f.replication.args...)...)
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
func (p *pairStore) URL() string { return pairURL(p.road.Addr()) }

func pairURL(addr string) string {
	return "mysql://" + User + ":" + Password + "@" + addr + "/" + Database
}

// Close implements Server.
func (p *pairStore) Close() error { return errors.Join(p.road.Close(), p.s.Close()) }

// Start implements Crasher.
func (p *pairStore) Start(ctx context.Context) error {
	if err := p.s.Start(ctx); err != nil {
		return err
	}
	primary, replica := p.roles()
	return errors.Join(p.do(ctx, primary, p.replication.open), p.follow(ctx, replica, primary), p.Healthy(ctx))
}

// Proxy implements Proxier.
func (p *pairStore) Proxy(ctx context.Context) (*Proxy, error) {
	return faultproxy.To(ctx, p.road.Addr(), faultproxy.Options{URL: pairURL})
}

// do runs statements at a node.
func (p *pairStore) do(ctx context.Context, n *node, statements ...[]string) error {
	return mysqlDo(n.Addr(), func(db *sql.DB) error {
		for _, list := range statements {
			for _, s := range list {
				if _, err := db.ExecContext(ctx, s); err != nil {
					return fmt.Errorf("%s: %w", s, err)
				}
			}
		}
		return nil
	})
}

// follow makes a node the other's replica.
func (p *pairStore) follow(ctx context.Context, replica, primary *node) error {
	var statements []string
	for _, s := range p.replication.follow {
		statements = append(statements, strings.ReplaceAll(s, "%d", strconv.Itoa(primary.port)))
	}
	return p.do(ctx, replica, p.replication.protect, statements)
}

// Healthy implements Failoverer.
func (p *pairStore) Healthy(ctx context.Context) error {
	_, replica := p.roles()
	return poll(ctx, func() error {
		return mysqlDo(replica.Addr(), func(db *sql.DB) error {
			state, err := oneRow(ctx, db, p.replication.state)
			if err != nil {
				return err
			}
			for _, name := range p.replication.running {
				if state[name] != "Yes" {
					return fmt.Errorf("%s of the replica is %q: %s %s", name, state[name], state["Last_IO_Error"], state["Last_SQL_Error"])
				}
			}
			return nil
		})
	})
}

// FailOver implements Failoverer. With KeepData it is a change of parts as
// people do it: the primary becomes read-only and stays so, with all its
// connections. With DropData the primary is lost, and the replica has had
// nothing of it.
func (p *pairStore) FailOver(ctx context.Context, d Data) error {
	if err := p.Healthy(ctx); err != nil {
		return fmt.Errorf("wait for a replica that could take over: %w", err)
	}
	old, replica := p.roles()
	var err error
	if d == KeepData {
		err = p.level(ctx, old, replica)
	} else {
		err = errors.Join(old.Crash(ctx, DropData), p.forget(ctx, replica))
	}
	if err != nil {
		return fmt.Errorf("prepare the failover: %w", err)
	}
	if err := p.do(ctx, replica, p.replication.leave, p.replication.open); err != nil {
		return fmt.Errorf("promote the replica: %w", err)
	}
	p.primary = 1 - p.primary
	p.road.Retarget(replica.Addr())
	return p.Start(ctx)
}

// level stops writes at the primary and waits until the replica has them all.
func (p *pairStore) level(ctx context.Context, primary, replica *node) error {
	if err := p.do(ctx, primary, p.replication.protect); err != nil {
		return err
	}
	var position, answer string
	if err := mysqlDo(primary.Addr(), func(db *sql.DB) error {
		return db.QueryRowContext(ctx, p.replication.position).Scan(&position)
	}); err != nil {
		return err
	}
	return mysqlDo(replica.Addr(), func(db *sql.DB) error {
		err := db.QueryRowContext(ctx, p.replication.await, position).Scan(&answer)
		if err == nil && answer != p.replication.reached {
			err = fmt.Errorf("the replica does not get as far as %s: %s", position, answer)
		}
		return err
	})
}

// forget makes a replica that lags behind, taken to the extreme.
func (p *pairStore) forget(ctx context.Context, replica *node) error {
	return p.do(ctx, replica, p.replication.leave, p.replication.open,
		[]string{"DROP DATABASE " + Database, "CREATE DATABASE " + Database})
}

// oneRow is the first row of an answer, by the names of its columns; nil: there
// is none.
func oneRow(ctx context.Context, db *sql.DB, query string) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		return nil, errors.Join(err, rows.Err())
	}
	values, places := make([]sql.NullString, len(names)), make([]any, len(names))
	for i := range values {
		places[i] = &values[i]
	}
	if err := rows.Scan(places...); err != nil {
		return nil, err
	}
	row := map[string]string{}
	for i, name := range names {
		row[name] = values[i].String
	}
	return row, rows.Err()
}
