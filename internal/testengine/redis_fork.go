package testengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"
)

// forkTimeout covers the start of a server and the copy of its data.
const forkTimeout = time.Minute

// ForkRedis starts another Redis with all that a server alone knows at this
// moment: a replica that was cut off and became a master.
func ForkRedis(t testing.TB, s Server) Server {
	t.Helper()
	of := Nodes(t, s)[0].Addr()
	fork := New(t, Redis)
	ctx, cancel := context.WithTimeout(t.Context(), forkTimeout)
	defer cancel()
	if err := forkRedis(ctx, of, Nodes(t, fork)[0].Addr()); err != nil {
		t.Fatalf("fork %s: %v", s.Origin(), err)
	}
	return fork
}

func forkRedis(ctx context.Context, of, fork string) error {
	// Redis would wait for more replicas for seconds.
	if err := redisDo(ctx, of, []any{"CONFIG", "SET", "repl-diskless-sync-delay", "0"}); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(of)
	if err != nil {
		return err
	}
	if err := redisDo(ctx, fork, []any{"REPLICAOF", host, port}); err != nil {
		return err
	}
	offset := func(addr, field string) (int64, error) {
		info, err := redisInfo(ctx, addr, "replication")
		if err != nil {
			return 0, err
		}
		if addr == fork && info["master_link_status"] != "up" {
			return 0, errors.New("the copy is not connected yet")
		}
		return strconv.ParseInt(info[field], 10, 64)
	}
	var want int64
	err = poll(ctx, func() error {
		if _, err := offset(fork, "slave_repl_offset"); err != nil {
			return err
		}
		want, err = offset(of, "master_repl_offset")
		return err
	})
	if err != nil {
		return err
	}
	err = poll(ctx, func() error {
		have, err := offset(fork, "slave_repl_offset")
		if err == nil && have < want {
			err = fmt.Errorf("the copy has %d of %d bytes", have, want)
		}
		return err
	})
	if err != nil {
		return err
	}
	return redisDo(ctx, fork, []any{"REPLICAOF", "NO", "ONE"})
}
