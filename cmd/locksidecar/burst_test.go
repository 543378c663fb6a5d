package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// What an app writes in one piece goes to the store in one piece, and is answered in few: 32 acquires of 32 locks are one
// read of Redis, and the sidecar does not write an answer at a time.
func TestBurst(t *testing.T) {
	server := testengine.New(t, testengine.Redis)
	s := serveProgram(t, "--store", storeURL(server), "--ttl", "60s", "--local-turns", "0")
	reads := counter{t, strings.TrimPrefix(server.URL(), "redis://")}
	app := linesTo(t, s.socket)
	const many = 32                // they fit into what Redis reads at a time, 16 KiB
	fewest, writes := 1<<30, 1<<30 // of the rounds, because a heartbeat may come between
	for round := range 10 {
		var piece strings.Builder
		for i := range many {
			fmt.Fprintf(&piece, `{"requestId":"%d/%d","acquire":{"resource":"r%d"}}`+"\n", round, i, i)
		}
		readBefore, wroteBefore := reads.now(), s.wrote(t)
		if _, err := io.WriteString(app.c, piece.String()); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for range many {
			_, id := app.granted()
			ids = append(ids, id)
		}
		writes = min(writes, s.wrote(t)-wroteBefore)
		fewest = min(fewest, reads.now()-readBefore-1) // one reads the count
		piece.Reset()
		for i, id := range ids {
			fmt.Fprintf(&piece, `{"requestId":"r%d/%d","release":{"lockId":%q}}`+"\n", round, i, id)
		}
		if _, err := io.WriteString(app.c, piece.String()); err != nil {
			t.Fatal(err)
		}
		for range many {
			app.hear("released")
		}
	}
	t.Logf("%d acquires in one piece: Redis reads %d times, the sidecar writes %d times", many, fewest, writes)
	if fewest != 1 {
		t.Errorf("Redis has read %d times, want 1", fewest)
	}
	if writes > many/4 {
		t.Errorf("the sidecar has written %d times to Redis and the app", writes)
	}
}

// wrote is how many calls of write the sidecar has made.
func (s *sidecarProgram) wrote(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	if err != nil {
		t.Skip(err)
	}
	return numberIn(t, string(text), `syscw: (\d+)`)
}

// counter asks a Redis how often it has read from its clients.
type counter struct {
	t    *testing.T
	addr string
}

func (c counter) now() int {
	c.t.Helper()
	conn, err := net.DialTimeout("tcp", c.addr, patience)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "INFO stats\r\nQUIT\r\n"); err != nil {
		c.t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		c.t.Fatal(err)
	}
	return numberIn(c.t, string(text), `total_reads_processed:(\d+)`)
}

func numberIn(t *testing.T, text, pattern string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in %s", pattern, text)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
