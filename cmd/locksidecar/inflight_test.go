package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// flood is an app that asks for more and more, over lines, gRPC or HTTP.
type flood struct {
	t       *testing.T
	socket  string
	refused atomic.Int64 // by a limit of what is in flight
	others  sync.Map     // what else was answered
}

const floodWait = "600s"

// answered counts an answer.
func (f *flood) answered(line string) {
	switch {
	case strings.Contains(line, "requests in flight") && strings.Contains(line, "wait for answers"):
		f.refused.Add(1)
	default:
		f.others.Store(line, true)
	}
}

func (f *flood) connect() net.Conn {
	f.t.Helper()
	c, err := net.Dial("unix", f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// lines asks on a connection with lines, n times.
func (f *flood) lines(who, n int) {
	f.t.Helper()
	c := f.connect()
	go func() {
		for l := bufio.NewScanner(c); l.Scan(); {
			f.answered(l.Text())
		}
	}()
	w := bufio.NewWriter(c)
	fmt.Fprintln(w, `{"requestId":"open","open":{}}`)
	for i := range n {
		fmt.Fprintf(w, `{"requestId":"%d","acquire":{"resource":"flood/%d/%d","wait":"`+floodWait+`","owner":"thread-%d"}}`+"\n", i, who, i, i)
	}
	if err := w.Flush(); err != nil {
		f.t.Fatal(err)
	}
}

// calls asks by single calls over gRPC, n at a time on one connection.
func (f *flood) calls(who, n int) {
	f.t.Helper()
	c, err := grpc.NewClient("unix:"+f.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	api, ctx := pb.NewLockSidecarClient(c), f.t.Context()
	s, err := api.OpenSession(ctx, &pb.OpenSessionRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	var all sync.WaitGroup
	f.t.Cleanup(func() {
		_ = c.Close()
		all.Wait()
	})
	for i := range n {
		all.Go(func() {
			_, err := api.Acquire(ctx, &pb.AcquireRequest{SessionId: s.GetSessionId(), Resource: fmt.Sprintf("flood/%d/%d", who, i), Wait: durationpb.New(600 * time.Second)})
			f.answered(grpcstatus.Convert(err).Message())
		})
		all.Go(func() {
			_, err := api.GetLock(ctx, &pb.GetLockRequest{Resource: fmt.Sprintf("flood/%d/%d", who, i)})
			f.answered(grpcstatus.Convert(err).Message())
		})
	}
}

// holds asks on n connections with HTTP.
func (f *flood) holds(n int) {
	f.t.Helper()
	for i := range n {
		c := f.connect()
		body := fmt.Sprintf(`{"resource":"flood/http/%d","wait":"`+floodWait+`"}`, i)
		if _, err := fmt.Fprintf(c, "POST /v1/hold HTTP/1.1\r\nHost: locksidecar\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			f.t.Fatal(err)
		}
		go func() {
			a, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return // the test is over
			}
			defer a.Body.Close()
			for l := bufio.NewScanner(a.Body); l.Scan(); {
				f.answered(l.Text())
			}
		}()
	}
}

// highest is the most that a process has had resident, in MiB.
func highest(t *testing.T, p *program) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] == "VmHWM:" {
			kib, err := strconv.Atoi(words[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("there is no VmHWM")
	return 0
}

// TestFloodAtASilentStore: an app that asks for thousands of locks while the store is silent gets as much of the sidecar's memory
// as it may have in flight, and the rest is refused. What lets go of a lock, a cancel and a keep-alive are answered all the same. When the store
// answers again, other requests find room.
func TestFloodAtASilentStore(t *testing.T) {
	const most = 128 // MiB, 88 to 95 are usual: 22 of the program's file, 2,304 requests at 13 KiB, connections, and room for the garbage of the flood
	for protocol, flow := range map[string]func(f *flood){
		"lines": func(f *flood) {
			for i := range 12 {
				f.lines(i, 1000)
			}
		},
		"gRPC": func(f *flood) {
			for i := range 4 {
				f.calls(i, 500)
			}
		},
		"HTTP": func(f *flood) {
			f.lines(0, 1000)
			f.lines(1, 1000)
			f.holds(800)
		},
	} {
		t.Run(protocol, func(t *testing.T) {
			server := testengine.New(t, testengine.Redis)
			side := serveProgram(t, "--store", storeURL(server), "--ttl", "10m", "--http-addr", "127.0.0.1:0")
			f := &flood{t: t, socket: side.socket}
			own := f.connect()
			answers := bufio.NewScanner(own)
			tell := func(line, want string) string {
				t.Helper()
				if _, err := fmt.Fprintln(own, line); err != nil {
					t.Fatal(err)
				}
				_ = own.SetReadDeadline(time.Now().Add(patience))
				answers.Scan()
				for strings.Contains(answers.Text(), `"event"`) {
					answers.Scan()
				}
				if !strings.Contains(answers.Text(), want) {
					t.Fatalf("%s is answered %s, %v; want %s", line, answers.Text(), answers.Err(), want)
				}
				return answers.Text()
			}
			tell(`{"requestId":"o","open":{"ttl":"600s"}}`, "opened")
			_, id, _ := strings.Cut(tell(`{"requestId":"a","acquire":{"resource":"own","wait":"60s"}}`, "lockId"), `"lockId":"`)
			id, _, _ = strings.Cut(id, `"`)

			resume := testengine.Pause(t, server)
			flow(f)
			eventually(t, "what is too much is refused", func() bool { return f.refused.Load() > 100 })
			settled(t, &f.refused)
			tell(`{"requestId":"k","keepAlive":{}}`, "keptAlive")
			tell(`{"requestId":"c","cancel":{"requestId":"x"}}`, "cancelled")
			tell(`{"requestId":"r","release":{"lockId":"`+id+`"}}`, "released")
			mib := highest(t, side.program)
			if t.Logf("%d MiB, %d refused", mib, f.refused.Load()); mib > most {
				t.Errorf("the sidecar had %d MiB, at most %d are allowed", mib, most)
			}
			f.others.Range(func(line, _ any) bool {
				s := line.(string)
				if !strings.Contains(s, "opened") && !strings.Contains(s, `"event"`) && !strings.Contains(s, "the store is unavailable") { // so a look is answered
					t.Errorf("answered: %s", s)
				}
				return true
			})
			resume()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			eventually(t, "there is room again", func() bool {
				p := launch(t, nil, binary, "run", "--socket", side.socket, "--wait", "30s", "after", "--", "true")
				return p.wait() == 0 && ctx.Err() == nil
			})
			eventually(t, "all is answered, and nothing counts as in flight", func() bool { return side.measures(t).inFlight == 0 })
		})
	}
}

// TestLooksWhereAllWait: where requests of one user that wait for a lock have used up what may be in flight, the same user sees
// who has it, and can end that.
func TestLooksWhereAllWait(t *testing.T) {
	side := serveProgram(t, "--max-in-flight", "32", "--http-addr", "127.0.0.1:0")
	has := linesTo(t, side.socket)
	has.say(`{"requestId":"1","acquire":{"resource":"hot"}}`)
	has.granted()
	var all []*lines
	for range 24 { // three quarters
		w := linesTo(t, side.socket)
		w.say(`{"requestId":"1","acquire":{"resource":"hot"}}`)
		all = append(all, w)
		eventually(t, "it waits behind those before it", func() bool { return side.measures(t).waiters == len(all) })
	}
	last := linesTo(t, side.socket)
	last.say(`{"requestId":"1","acquire":{"resource":"free"}}`)
	if line, err := last.r.ReadString('\n'); !strings.Contains(line, "requests in flight per uid") {
		t.Fatalf("one more is answered %s %v", line, err)
	}
	for _, args := range [][]string{{"list"}, {"get", "hot"}, {"release", "--force", "--grace", "0s", "hot"}} {
		p := launch(t, nil, binary, append(args, "--socket", side.socket)...)
		if code := p.wait(); code != 0 || args[0] != "release" && !strings.Contains(p.out.String(), "hot") {
			t.Errorf("%v has ended with %d: %s%s", args, code, p.out, p.err)
		}
	}
	all[0].granted()
	for _, w := range all {
		_ = w.c.Close()
	}
	eventually(t, "nothing is in flight", func() bool { return side.measures(t).inFlight == 0 })
}

// settled waits until a number does not grow any more.
func settled(t *testing.T, n *atomic.Int64) {
	t.Helper()
	last, since := n.Load(), time.Now()
	eventually(t, "the number stays", func() bool {
		if now := n.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
}

// TestFloodLeavesOthers: an app that waits for thousands of locks is refused more, and another user gets locks at once. So does
// another session of the same user.
func TestFloodLeavesOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	side := serveProgram(t, "--socket-mode", "0666")
	program := forEverybody(t, side)
	f := &flood{t: t, socket: side.socket}
	taken := f.connect()
	go func() { // while the answers are read
		fmt.Fprintln(taken, `{"requestId":"o","open":{}}`)
		for i := range 4 {
			for j := range 1000 {
				fmt.Fprintf(taken, `{"requestId":"%d-%d","acquire":{"resource":"flood/%d/%d","wait":"60s"}}`+"\n", i, j, i, j)
			}
		}
	}()
	answers := bufio.NewScanner(taken)
	_ = taken.SetReadDeadline(time.Now().Add(patience))
	for range 4001 {
		if !answers.Scan() || strings.Contains(answers.Text(), "error") {
			t.Fatalf("answered %s, %v", answers.Text(), answers.Err())
		}
	}
	for i := range 4 {
		f.lines(i, 1000)
	}
	eventually(t, "what is too much is refused", func() bool { return f.refused.Load() > 1000 })
	settled(t, &f.refused)
	for user, uid := range map[string]uint32{"the same user": 0, "another user": 4321} {
		p := launchAs(t, uid, program, "run", "--socket", side.socket, "--wait", "30s", "of/"+strings.ReplaceAll(user, " ", "-"), "--", "true")
		if p.wait() != 0 {
			t.Errorf("%s gets no lock: %s", user, p.err)
		}
	}
}

// TestStackOfARequest: a request that is on its way while the store is silent has a stack of 8 KiB. The next size would be twice
// as large, for each of thousands.
func TestStackOfARequest(t *testing.T) {
	t.Run("without traces", func(t *testing.T) { testStackOfARequest(t) })
	t.Run("with traces", func(t *testing.T) { // which nobody takes
		testStackOfARequest(t, "OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9")
	})
}

func testStackOfARequest(t *testing.T, env ...string) {
	const many, most = 1000, 10 << 10
	server := testengine.New(t, testengine.Redis)
	side := serveIn(t, env, filepath.Join(socketDir(t), "s"), "--store", storeURL(server), "--ttl", "10m", "--http-addr", "127.0.0.1:0")
	f := &flood{t: t, socket: side.socket}
	own := linesTo(t, side.socket)
	own.say(`{"requestId":"1","acquire":{"resource":"own","wait":"60s"}}`)
	own.granted()
	before := side.measures(t).stacks
	testengine.Pause(t, server)
	f.lines(0, many)
	eventually(t, "all are in flight", func() bool { return side.measures(t).inFlight == many })
	if each := (side.measures(t).stacks - before) / many; each > most {
		t.Errorf("each has %d bytes of stack, at most %d are allowed", each, most)
	}
}
