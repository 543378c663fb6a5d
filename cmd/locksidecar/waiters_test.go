package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// A thousand requests that wait cost the sidecar no goroutines but those that it keeps for the next
// requests, and are granted as always. Half of them wait for one lock, inside the
// sidecar; the others wait in the store, each for a lock of its own. Requests with once are no exception.
func TestWaitersNeedNoGoroutines(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) []string{
		"embedded": func(*testing.T) []string { return []string{"--store", "embedded:"} },
		"Redis":    func(t *testing.T) []string { return onStore(t, testengine.Redis) },
		"shards": func(t *testing.T) []string {
			return asShards(testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveProgram(t, append(store(t), "--ttl", "60s", "--http-addr", "127.0.0.1:0")...)
			t.Run("plain", func(t *testing.T) { thousandWait(t, s, "") })
			t.Run("once", func(t *testing.T) { thousandWait(t, s, `,"once":{"keep":"3600s"}`) })
		})
	}
}

// thousandWait has a thousand requests wait, with more in each.
func thousandWait(t *testing.T, s *sidecarProgram, more string) {
	const half = 500
	has, waits := linesTo(t, s.socket), linesTo(t, s.socket)
	ids := map[string]string{}
	// Each answer is read: an app that leaves hundreds unread loses its connection.
	for i := range half {
		has.say(`{"requestId":"%d","acquire":{"resource":"r%d"}}`, i, i)
		request, id := has.granted()
		ids[request] = id
	}
	before := s.measures(t)
	for i := range half {
		waits.say(`{"requestId":"one%d","acquire":{"resource":"r0"%s}}`, i, more)
		waits.say(`{"requestId":"own%d","acquire":{"resource":"r%d","direct":true%s}}`, i, i, more)
	}
	var after measures
	eventually(t, "all wait, and nobody works for them", func() bool {
		after = s.measures(t)
		return after.waiters == 2*half && after.goroutines < before.goroutines+keptGoroutines
	})
	t.Logf("goroutines: %d, then %d; a waiter takes %d bytes of heap and %d of stacks", before.goroutines, after.goroutines,
		(after.heap-before.heap)/(2*half), (after.stacks-before.stacks)/(2*half))
	pass := func() {
		_, id := waits.granted()
		waits.say(`{"requestId":"r%s","release":{"lockId":"%s"}}`, id, id)
	}
	for _, id := range ids {
		has.say(`{"requestId":"r%s","release":{"lockId":"%s"}}`, id, id)
		has.hear("released")
		pass() // to one who waits for that lock
	}
	for range half { // those who wait for the one lock, but for the first
		pass()
	}
	eventually(t, "nobody waits", func() bool { return s.measures(t).waiters == 0 })
}

// keptGoroutines are those that are kept for the next requests: twice internal/workers keeps 128.
const keptGoroutines = 2*128 + 50

// measures are what a sidecar tells of itself.
type measures struct{ waiters, inFlight, goroutines, heap, stacks int }

func (s *sidecarProgram) measures(t *testing.T) measures {
	t.Helper()
	addr := ""
	eventually(t, "the address is in the log", func() bool {
		m := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(s.err.String())
		if m != nil {
			addr = m[1]
		}
		return m != nil
	})
	_, text := get(t, addr, "/metrics")
	number := func(name string) int {
		m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in %s", name, text)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	return measures{
		waiters:    number("locksidecar_waiters"),
		inFlight:   number("locksidecar_requests_in_flight"),
		goroutines: number("go_goroutines"),
		heap:       number("go_memstats_heap_alloc_bytes"),
		stacks:     number("go_memstats_stack_inuse_bytes"),
	}
}

// lines is a session over lines.
type lines struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func linesTo(t *testing.T, socket string) *lines {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	l := &lines{t, c, bufio.NewReader(c)}
	l.say(`{"requestId":"o","open":{}}`)
	l.hear("opened")
	return l
}

func (l *lines) say(format string, args ...any) {
	l.t.Helper()
	_ = l.c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(l.c, fmt.Sprintf(format, args...)+"\n"); err != nil {
		l.t.Fatal(err)
	}
}

// hear gives the next line that has a word; it skips answers without an error.
func (l *lines) hear(word string) string {
	l.t.Helper()
	for {
		line, err := l.r.ReadString('\n')
		if err != nil || strings.Contains(line, `"error"`) {
			l.t.Fatalf("%s %v", line, err)
		}
		if strings.Contains(line, `"`+word+`"`) {
			return line
		}
	}
}

var requestAndLock = regexp.MustCompile(`"requestId":"([^"]*)".*?"lockId":"([^"]*)"`)

// granted gives the request and the lock_id of the next grant.
func (l *lines) granted() (request, id string) {
	l.t.Helper()
	line := l.hear("granted")
	m := requestAndLock.FindStringSubmatch(line)
	if m == nil {
		l.t.Fatal(line)
	}
	return m[1], m[2]
}
