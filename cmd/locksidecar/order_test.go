package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// An app writes its acquires of one lock one after the other, on one connection, and reads no answer
// between them. They are served in that order: on each store, over each way that has an order, and
// whatever kind of request each is.
//
// What the ways differ in is over before the store is asked. So all of them are tried on the embedded store,
// on Redis and on shards, and on the others the one that sends the most at a time; with LOCKSIDECAR_TEST_FULL all everywhere.
func TestOneConnectionIsServedInOrder(t *testing.T) {
	inOrder := func(t *testing.T, store []string, all bool) {
		for name, more := range map[string][]string{"Arbiter": nil, "EachAsks": {"--local-turns", "0"}} {
			t.Run(name, func(t *testing.T) {
				s := serveProgram(t, append(append(store, "--ttl", "30s"), more...)...)
				for way, dial := range ways {
					if !all && way != "OneWrite" {
						continue
					}
					t.Run(way, func(t *testing.T) {
						for _, k := range kindsOfQueues {
							t.Run(k.name, func(t *testing.T) { k.isServedInOrder(t, s, dial) })
						}
						t.Run("Again", func(t *testing.T) { releaseThenAgain(t, dial(t, s)) })
						t.Run("GivenUp", func(t *testing.T) { cancelThenTry(t, dial(t, s)) })
					})
				}
			})
		}
	}
	t.Run("embedded", func(t *testing.T) { inOrder(t, []string{"--store", "embedded:"}, true) })
	t.Run("Shards", func(t *testing.T) {
		inOrder(t, asShards(testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)), true)
	})
	full := os.Getenv("LOCKSIDECAR_TEST_FULL") != ""
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		inOrder(t, onStore(t, kind), full || kind == testengine.Redis)
	})
}

// ways are those in which one app can write requests one after the other.
var ways = map[string]func(*testing.T, *sidecarProgram) talk{
	"OneWrite":   func(t *testing.T, s *sidecarProgram) talk { return talkByLines(t, s, true) },
	"ManyWrites": func(t *testing.T, s *sidecarProgram) talk { return talkByLines(t, s, false) },
	"GRPC":       talkByGRPC,
}

// kindOfQueue is what stands in a queue.
type kindOfQueue struct {
	name  string
	ask   func(i int) *pb.AcquireRequest // the i-th; without a resource, it is that of all
	limit int                            // how many have it together; 0: one, or those that share
}

var kindsOfQueues = []kindOfQueue{
	{name: "Exclusive", ask: func(int) *pb.AcquireRequest { return &pb.AcquireRequest{} }},
	{name: "Direct", ask: func(int) *pb.AcquireRequest { return &pb.AcquireRequest{Direct: true} }},
	{name: "Once", ask: func(int) *pb.AcquireRequest { return &pb.AcquireRequest{Once: &pb.Once{}} }},
	{name: "Permit", limit: 1, ask: func(int) *pb.AcquireRequest { return permit(1) }},
	{name: "Permits", limit: 3, ask: func(int) *pb.AcquireRequest { return permit(3) }},
	{name: "Several", ask: func(i int) *pb.AcquireRequest {
		return &pb.AcquireRequest{Resources: []string{"", fmt.Sprintf("~ behind it %d", i%3)}}
	}},
	{name: "Mixed", ask: func(i int) *pb.AcquireRequest {
		switch i % 7 {
		case 1:
			return &pb.AcquireRequest{Direct: true}
		case 2, 3:
			return &pb.AcquireRequest{Mode: pb.Mode_SHARED}
		case 4:
			return &pb.AcquireRequest{Mode: pb.Mode_SHARED, Direct: true}
		case 5:
			return &pb.AcquireRequest{Owner: strconv.Itoa(i), Reentrant: true}
		default:
			return &pb.AcquireRequest{}
		}
	}},
}

func permit(n int32) *pb.AcquireRequest { return &pb.AcquireRequest{Limit: &n} }

// shares reports whether two of a kind may have the lock together.
func shares(a, b *pb.AcquireRequest) bool {
	return a.GetMode() == pb.Mode_SHARED && b.GetMode() == pb.Mode_SHARED
}

// isServedInOrder writes a queue of a kind behind somebody who has the lock, with requests for other
// locks between, which wait for nobody.
func (k *kindOfQueue) isServedInOrder(t *testing.T, s *sidecarProgram, dial func(*testing.T, *sidecarProgram) talk) {
	const many = 30
	other, app := dial(t, s), dial(t, s)
	for round := range 2 {
		name := fmt.Sprintf("%s %d", t.Name(), round)
		id := func(what string, i int) string { return fmt.Sprintf("%s %d %d", what, round, i) }
		other.write(acquire(id("has it", 0), name, &pb.AcquireRequest{Direct: true}))
		has, fails := other.next()
		if has.GetGranted() == nil && strings.Contains(fails, "UNSUPPORTED") {
			t.Skip(fails)
		}
		var queue []*pb.SessionRequest
		var asks []*pb.AcquireRequest
		for i := range many {
			asks = append(asks, k.ask(i))
			queue = append(queue, acquire(id("waits", i), name, asks[i]), acquire(id("free", i), fmt.Sprintf("%s free %d", name, i), &pb.AcquireRequest{}))
		}
		app.write(queue...)
		if round > 0 { // and once while they are on the way
			app.grants(many, "free")
		}
		other.write(release(has.GetGranted().GetLockId()))
		waits := make(map[int]bool)
		for i := range many {
			waits[i] = true
		}
		for len(waits) > 0 {
			a, fails := app.next()
			if strings.Contains(fails, "UNSUPPORTED") {
				t.Skip(fails)
			}
			if fails != "" {
				t.Fatal(fails)
			}
			var n int
			if _, err := fmt.Sscanf(a.GetRequestId(), id("waits", 0)[:len("waits 0 ")]+"%d", &n); err != nil {
				continue
			}
			delete(waits, n)
			overtaken := 0
			for i := range n {
				if waits[i] && !shares(asks[i], asks[n]) {
					overtaken++
				}
			}
			if overtaken > max(k.limit-1, 0) { // those who have it together are told in any order
				t.Fatalf("round %d: request %d is granted, before %d that came earlier; %d wait", round, n, overtaken, len(waits))
			}
			app.write(release(a.GetGranted().GetLockId()))
		}
	}
}

// releaseThenAgain releases a lock and tries it again in one write: the release comes first.
func releaseThenAgain(t *testing.T, app talk) {
	name := t.Name()
	app.write(acquire("0", name, &pb.AcquireRequest{}))
	for i := 1; i <= 50; i++ {
		lockID := app.grants(1, strconv.Itoa(i-1))
		app.write(release(lockID), acquire(strconv.Itoa(i), name, &pb.AcquireRequest{Wait: durationpb.New(0), Direct: i%3 == 0, Mode: pb.Mode(1 + i%2)}))
	}
	app.grants(1, "50")
}

// cancelThenTry cancels a wait, releases the lock and tries it in one write: what was cancelled has it not, and is not
// before the try.
func cancelThenTry(t *testing.T, app talk) {
	name := t.Name()
	for i := range 30 {
		id := func(what string) string { return fmt.Sprintf("%s %d", what, i) }
		app.write(acquire(id("has"), name, &pb.AcquireRequest{}))
		has := app.grants(1, id("has"))
		app.write(acquire(id("waits"), name, &pb.AcquireRequest{Direct: i%2 == 0}), acquire(id("free"), name+" free", &pb.AcquireRequest{}))
		free := app.grants(1, id("free")) // by now it stands in the queue, or nearly
		cancel := &pb.SessionRequest{RequestId: id("cancel"), Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: id("waits")}}}
		app.write(cancel, release(has), acquire(id("try"), name, &pb.AcquireRequest{Wait: durationpb.New(0), Direct: i%3 == 0}), release(free))
		for cancelled, got := false, ""; !cancelled || got == ""; {
			switch a, fails := app.next(); {
			case a.GetRequestId() == id("waits") && strings.Contains(fails, "CANCELLED"):
				cancelled = true
			case a.GetRequestId() == id("try") && fails == "":
				got = a.GetGranted().GetLockId()
				app.write(release(got))
			default:
				t.Fatalf("%v %s", a, fails)
			}
		}
	}
}

func acquire(id, name string, q *pb.AcquireRequest) *pb.SessionRequest {
	if len(q.GetResources()) > 0 {
		for i, part := range q.GetResources() {
			q.Resources[i] = name + part
		}
	} else {
		q.Resource = name
	}
	return &pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Acquire{Acquire: q}}
}

func release(lockID string) *pb.SessionRequest {
	return &pb.SessionRequest{RequestId: "release " + lockID, Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: lockID}}}
}

// talk is a session of an app that writes and reads by itself.
type talk struct {
	t     *testing.T
	write func(...*pb.SessionRequest)
	read  func() *pb.SessionResponse
}

// next gives the next answer, and the text of its error.
func (a talk) next() (r *pb.SessionResponse, fails string) {
	a.t.Helper()
	for {
		r = a.read()
		if e := r.GetError(); e != nil {
			return r, fmt.Sprintf("%s: %s %v", r.GetRequestId(), e.GetMessage(), e.GetDetails())
		}
		if r.GetGranted() != nil {
			return r, ""
		}
	}
}

// grants reads so many grants to requests whose ids begin so, and gives the last one's lock_id.
func (a talk) grants(n int, prefix string) (lockID string) {
	a.t.Helper()
	for n > 0 {
		r, fails := a.next()
		if fails != "" {
			a.t.Fatal(fails)
		}
		if strings.HasPrefix(r.GetRequestId(), prefix) {
			lockID = r.GetGranted().GetLockId()
			n--
		}
	}
	return lockID
}

func (a talk) open() talk {
	a.t.Helper()
	a.write(&pb.SessionRequest{RequestId: "open", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{}}})
	if r := a.read(); r.GetOpened() == nil {
		a.t.Fatal(r)
	}
	return a
}

func talkByLines(t *testing.T, s *sidecarProgram, together bool) talk {
	t.Helper()
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	in := bufio.NewReader(c)
	return talk{
		t: t,
		write: func(all ...*pb.SessionRequest) {
			_ = c.SetDeadline(time.Now().Add(patience))
			var b []byte
			for i, q := range all {
				line, err := protojson.Marshal(q)
				if err != nil {
					t.Fatal(err)
				}
				if b = append(append(b, line...), '\n'); together && i < len(all)-1 {
					continue
				}
				if _, err := c.Write(b); err != nil {
					t.Fatal(err)
				}
				b = b[:0]
			}
		},
		read: func() *pb.SessionResponse {
			t.Helper()
			_ = c.SetDeadline(time.Now().Add(patience))
			line, err := in.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			r := new(pb.SessionResponse)
			if err := protojson.Unmarshal(line, r); err != nil {
				t.Fatal(err)
			}
			return r
		},
	}.open()
}

func talkByGRPC(t *testing.T, s *sidecarProgram) talk {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	st, err := pb.NewLockSidecarClient(cc).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return talk{
		t: t,
		write: func(all ...*pb.SessionRequest) {
			for _, q := range all {
				if err := st.Send(q); err != nil {
					t.Fatal(err)
				}
			}
		},
		read: func() *pb.SessionResponse {
			t.Helper()
			r, err := st.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
	}.open()
}
