package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A proxy that leads connections to one server and to another by turns is refused.
func TestSplitterIsRefused(t *testing.T) { again(t, testSplitterIsRefused) }

func testSplitterIsRefused(t testing.TB) {
	var addrs []string
	for range 2 {
		s := testengine.New(t, testengine.MariaDB)
		b := openAt(t, s.URL())
		leaseOf(t, b)
		t.Cleanup(func() { _ = b.Close() })
		addrs = append(addrs, b.d.cfg.Addrs[0])
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for i := 0; ; i++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { relay(c, addrs[i%2]) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); tasks.Wait() })
	b := openAt(t, fmt.Sprintf("mysql://root@%s/%s", ln.Addr(), testengine.Database))
	t.Cleanup(func() { _ = b.Close() })
	for range 4 {
		if l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second}); err == nil {
			_ = l.Close(t.Context())
			t.Fatal("a lease was opened")
		} else if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("OpenLease: %v", err)
		}
	}
}

// What takes FOR UPDATE and locks nothing (a server with optimistic transactions, a proxy
// that drops the words) is refused: two transactions lock the same row there. So is what does
// not know how to ask for a row without a wait, as go-mysql-server and older servers.
func TestServerWithoutLocksIsRefused(t *testing.T) {
	t.Parallel()
	again(t, testServerWithoutLocksIsRefused)
}

func testServerWithoutLocksIsRefused(t testing.TB) {
	url := own(t, testengine.Shared(t, testengine.MariaDB), "nolocks_")
	addr := mustParse(t, url).Addrs[0]
	for reason, words := range map[string]*strings.Replacer{
		"two transactions have locked the same row": strings.NewReplacer("FOR UPDATE NOWAIT", "                 ", "FOR UPDATE", "          "),
		"it does not know NOWAIT":                   strings.NewReplacer("NOWAIT", "NOWORD"),
	} {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var tasks sync.WaitGroup
		tasks.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				tasks.Go(func() { relay(&lockless{Conn: c, words: words}, addr) })
			}
		})
		t.Cleanup(func() { _ = ln.Close(); tasks.Wait() })
		b := openAt(t, strings.Replace(url, addr, ln.Addr().String(), 1))
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second})
		if err == nil {
			_ = l.Close(t.Context())
			t.Fatalf("a lease was opened although %s", reason)
		}
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "this is not one MySQL") || !strings.Contains(err.Error(), reason) {
			t.Errorf("OpenLease although %s: %v", reason, err)
		}
	}
}

// lockless is a client's connection whose statements lose the words that lock rows, for
// others that are as long.
type lockless struct {
	net.Conn
	words *strings.Replacer
	rest  []byte
}

// Read reads whole packets: three bytes of length, one of their number, and the statement.
func (c *lockless) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		c.rest = append(head, c.words.Replace(string(body))...)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func relay(c net.Conn, addr string) {
	defer func() { _ = c.Close() }()
	s, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(s, c)
		_ = s.Close()
	}()
	_, _ = io.Copy(c, s)
	_ = c.Close()
	<-done
}
