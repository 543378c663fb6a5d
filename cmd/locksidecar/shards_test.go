package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// asShards are flags for servers as shards a, b, c, each with what its URL needs.
func asShards(servers ...testengine.Server) (flags []string) {
	for i, s := range servers {
		url := s.URL() + "?"
		if strings.HasPrefix(url, "redis") {
			url += "restart-grace=0s&"
		}
		flags = append(flags, "--store", url+"shard="+string(rune('a'+i)))
	}
	return flags
}

// openSession opens a session at a sidecar.
func openSession(t *testing.T, socket string) *client.Session {
	t.Helper()
	c, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s, err := c.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// oneAtEach takes locks until there is one at each of the shards, and gives them by number. look tells
// how many each shard has.
func oneAtEach(t *testing.T, s *client.Session, servers []testengine.Server) []*client.Lock {
	t.Helper()
	found := make([]*client.Lock, len(servers))
	for i, n := 0, 0; n < len(servers); i++ {
		name := fmt.Sprintf("customer/%d", i)
		l := acquired(t, s, name)
		number := -1
		for k, server := range servers {
			// The sidecars of this store alone are refused: it is a shard. So a program that only looks is used.
			got := cli(t, "get", "--store", server.URL(), "-o", "json", name)
			if got.code == 0 && strings.Contains(got.out, l.ID) {
				number = k
			}
		}
		if number < 0 {
			t.Fatalf("no shard has %s", name)
		}
		if found[number] == nil {
			found[number] = l
			n++
		}
	}
	return found
}

func acquired(t *testing.T, s *client.Session, name string) *client.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := s.Acquire(ctx, name, client.AcquireOptions{})
	if err != nil {
		t.Fatalf("Acquire(%s) = %v", name, err)
	}
	return l
}

// One of three shards is killed: its locks are lost, in time, and the others never cease to be valid.
// Then another one is frozen: that holds up nobody at the third.
func TestShardKilledAndFrozen(t *testing.T) {
	t.Parallel()
	servers := []testengine.Server{testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)}
	side := serveProgram(t, append(asShards(servers...), "--ttl", "30s")...)
	s := openSession(t, side.socket)
	locks := oneAtEach(t, s, servers)
	start := testengine.Crash(t, servers[1], testengine.DropData)
	eventually(t, "the lock of the killed shard is lost", func() bool {
		relied(t, locks[0], locks[2])
		return locks[1].Err() != nil
	})
	if text := locks[1].Err().Error(); !strings.Contains(text, "LEASE_EXPIRED") && !strings.Contains(text, "did not answer") {
		t.Errorf("lost: %s", text)
	}
	eventually(t, "info names the shard", func() bool { return strings.Contains(cli(t, "info", "--socket", side.socket).out, "(away: b)") })
	for _, args := range [][]string{{"list"}, {"outcomes"}, {"deadlocks"}, {"deadlocks", "--tree"}} {
		got := cli(t, append(args, "--socket", side.socket)...)
		if got.code != 69 || !strings.HasSuffix(got.err, ": this is not all: these shards of the store do not answer: b\n") || got.out == "" {
			t.Errorf("%s: status %d, %s%s", args, got.code, got.out, got.err)
		}
		if args[0] == "list" && (!strings.Contains(got.out, locks[0].ID) || !strings.Contains(got.out, locks[2].ID)) {
			t.Errorf("list lacks what the others have: %s", got.out)
		}
		got = cli(t, append(args, "--socket", side.socket, "-o", "json")...)
		var answer struct{ MissingShards []string }
		if err := json.Unmarshal([]byte(got.out), &answer); got.code != 69 || err != nil || strings.Join(answer.MissingShards, " ") != "b" {
			t.Errorf("%s -o json: status %d, %v: %s%s", args, got.code, err, got.out, got.err)
		}
	}
	watch := launch(t, nil, binary, "watch", "--socket", side.socket)
	eventually(t, "watch names the shard", func() bool {
		return strings.Contains(watch.err.String(), "these shards of the store do not answer: b; ") && strings.Contains(watch.out.String(), locks[0].Resource)
	})
	for i := range 20 {
		relied(t, locks[0], locks[2])
		if got := cli(t, "get", "--socket", side.socket, locks[0].Resource); got.code != 0 {
			t.Fatalf("get %d: %s", i, got.err)
		}
	}
	start()
	back := acquired(t, s, locks[1].Resource)
	eventually(t, "watch sees all shards again", func() bool {
		return strings.Contains(watch.err.String(), "all shards of the store answer again") && strings.Contains(watch.out.String(), back.Resource)
	})
	if back.Fence <= locks[1].Fence {
		t.Errorf("the fence went from %d to %d", locks[1].Fence, back.Fence)
	}
	if got := cli(t, append([]string{"shards"}, asShards(servers...)...)...); got.code != 0 || strings.Count(got.out, "belongs to a b c") != 3 {
		t.Errorf("the shard that lost everything has not got its set again: %s%s", got.out, got.err)
	}
	resume := testengine.Pause(t, servers[2])
	eventually(t, "the lock of the frozen shard is lost", func() bool {
		relied(t, locks[0], back)
		if err := locks[0].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		locks[0] = acquired(t, s, locks[0].Resource)
		return locks[2].Err() != nil
	})
	resume()
	acquired(t, s, locks[2].Resource)
}

// relied fails the test when one of the locks is lost, or cannot be relied on at this moment.
func relied(t *testing.T, locks ...*client.Lock) {
	t.Helper()
	for _, l := range locks {
		if l.Err() != nil || l.ValidFor() <= 0 {
			t.Fatalf("%s: %v, valid for %s", l.Resource, l.Err(), l.ValidFor())
		}
	}
}

// Stores of five kinds are one store. Who names others is refused, and the set can be replaced when no
// sidecar runs.
func TestShardsOfSeveralKinds(t *testing.T) {
	t.Parallel()
	servers := []testengine.Server{testengine.New(t, testengine.Redis), testengine.New(t, testengine.ZooKeeper), testengine.New(t, testengine.MariaDB), testengine.New(t, testengine.Postgres), testengine.New(t, testengine.Etcd)}
	side := serveProgram(t, append(asShards(servers...), "--ttl", "30s")...)
	s := openSession(t, side.socket)
	locks := oneAtEach(t, s, servers)
	if got := cli(t, "list", "--socket", side.socket, "-o", "json"); got.code != 0 || strings.Count(got.out, "lockId") < len(servers) {
		t.Errorf("list: %s%s", got.out, got.err)
	}
	for _, flags := range [][]string{asShards(servers[0], servers[1]), {"--store", servers[0].URL() + "?restart-grace=0s"}} {
		other := launch(t, nil, binary, append([]string{"serve", "--socket", socketDir(t) + "/s"}, flags...)...)
		eventually(t, "who names others is refused", func() bool {
			return strings.Contains(other.err.String(), "belongs to another set of shards: [a b c d e]")
		})
	}
	replace := append([]string{"shards", "--replace"}, asShards(servers[0], servers[2])...)
	if got := cli(t, replace...); got.code == 0 || !strings.Contains(got.err, "in use") {
		t.Errorf("shards --replace while locks are held: status %d, %s%s", got.code, got.out, got.err)
	}
	for _, l := range locks {
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_ = s.Close()
	side.signal(syscall.SIGTERM)
	side.wait()
	eventually(t, "the set is replaced", func() bool { return cli(t, replace...).code == 0 })
	again := serveProgram(t, asShards(servers[0], servers[2])...)
	acquired(t, openSession(t, again.socket), "customer/1")
}
