package testengine

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// leader is the node that leads an ensemble, and one that does not.
func leader(t *testing.T, nodes []Node) (leads, follows Node) {
	t.Helper()
	for _, n := range nodes {
		text, err := zooKeeperSays(within(t, time.Second), n.Addr(), "srvr")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "Mode: leader") {
			leads = n
		} else {
			follows = n
		}
	}
	if leads == nil {
		t.Fatal("nobody leads")
	}
	return leads, follows
}

func testEnsembleNodes(t *testing.T, s Server) {
	c := newClient(t, s.URL())
	set(t, c, "1")
	for fault, f := range map[string]func(n Node) (repair func()){
		"pause": func(n Node) func() { return Pause(t, n) },
		"crash": func(n Node) func() { return Crash(t, n, DropData) },
	} {
		leads, _ := leader(t, Nodes(t, s))
		var hosts []string
		for _, n := range Nodes(t, s) {
			if n != leads {
				hosts = append(hosts, n.Addr())
			}
		}
		rest := &zkClient{hosts: hosts}
		begin := time.Now()
		repair := f(leads)
		eventually(t, fault+": another leader takes writes", func() bool {
			return rest.put(within(t, 3*time.Second), "x", fault) == nil
		})
		t.Logf("%s: another leader after %v", fault, time.Since(begin))
		wantAll(t, rest, "1")
		repair()
		eventually(t, fault+": the node is back", func() bool {
			text, err := zooKeeperSays(within(t, time.Second), leads.Addr(), "srvr")
			return err == nil && strings.Contains(text, "Mode: follower")
		})
	}
	// What the majority knows does not depend on a node that has lost all.
	_, follows := leader(t, Nodes(t, s))
	Restart(t, follows, DropData)
	wantAll(t, &zkClient{hosts: []string{follows.Addr()}}, "1")
}

// A session ends when its client is not heard of for the time it has asked for,
// which can be short.
func testSessionExpires(t *testing.T, s Server) {
	p := Through(t, s)
	_, hosts, _ := splitURL(p.URL())
	conn, events, err := zk.Connect(hosts, 500*time.Millisecond, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Create("/mine", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	p.Inject(Cut)
	begin := time.Now()
	err = (&zkClient{hosts: strings.Split(strings.TrimPrefix(s.URL(), "zk://"), ",")}).do(within(t, long), func(other *zk.Conn) error {
		return poll(within(t, long), func() error {
			if ok, _, err := other.Exists("/mine"); err != nil || ok {
				return errors.Join(err, errors.New("the ephemeral node is still there"))
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("the session of 500ms expired after %v", d)
	}
	heal(t, p)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateExpired {
				return
			}
		case <-time.After(long):
			t.Fatal("the client was not told that its session has expired")
		}
	}
}

// TestUnfinishedAnswers: a server that closes the connection before it has said all, as one does that joins the
// others, is asked again. Only one that says that it is another server has taken the port.
func TestUnfinishedAnswers(t *testing.T) {
	for says, taken := range map[string]bool{
		"":                                       false,
		"Environment:\nuser.name=root\n":         false,
		"Environment:\nuser.dir=/tmp/oth":        false,
		"Environment:\nuser.dir=/tmp/other\nx=y": true,
	} {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", hostPort(0))
		if err != nil {
			t.Fatal(err)
		}
		var server sync.WaitGroup
		server.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, len("envi")))
			_, _ = io.WriteString(c, says)
			_ = c.Close()
		})
		_, err = zooKeeperServer{dir: "/tmp/this"}.ready(within(t, long), &node{port: ln.Addr().(*net.TCPAddr).Port})
		if over := (stopped{}); err == nil || errors.As(err, &over) != taken {
			t.Errorf("it says %q: %v; another server: %t", says, err, taken)
		}
		_ = ln.Close()
		server.Wait()
	}
}
