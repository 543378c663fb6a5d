package localapi

import (
	"bufio"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// perStalledStream is what docs/operations.md says that a stream costs whose
// client reads nothing.
const perStalledStream = 320 << 10

// used is the memory of this process that the collector cannot give back.
func used() int {
	runtime.GC()
	runtime.GC() // what pools kept over the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// flooder starts an app that asks much on many streams and reads nothing. It
// returns when no more goes in.
func (s *sidecar) flooder(t *testing.T, w wireName, streams int, try string, env ...string) *exec.Cmd {
	t.Helper()
	return process(t, "stuck", append(env, childEnv+"=flooder", socketEnv+"="+s.socket, countEnv+"="+strconv.Itoa(streams), tryEnv+"="+try, wireEnv+"="+string(w))...)
}

// process starts this program as something else, see childEnv, and returns when it has said so.
func process(t *testing.T, says string, env ...string) *exec.Cmd {
	t.Helper()
	p := exec.Command("/proc/self/exe")
	p.Env = append(os.Environ(), env...)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Process.Kill(), p.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != says+"\n" {
		t.Fatalf("%q %v", line, err)
	}
	return p
}

// A stream that asks and reads nothing costs a bounded amount of memory.
func TestMemoryOfStreamsThatReadNothing(t *testing.T) {
	overEachWire(t, testMemoryOfStreamsThatReadNothing)
}

func testMemoryOfStreamsThatReadNothing(t *testing.T, w wireName) {
	const n = 60
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Stall = time.Hour })
	before := used()
	s.flooder(t, w, n, "")
	took := used() - before
	t.Logf("%d streams: %d KiB, %d KiB each, %d goroutines", n, took>>10, took>>10/n, runtime.NumGoroutine())
	if took > n*perStalledStream {
		t.Errorf("%d streams take %d KiB, at most %d are promised", n, took>>10, n*perStalledStream>>10)
	}
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{}) // others are served
	x.acquire("1", tryOnce("r"))
	if x.answer("1").GetGranted() == nil {
		t.Error("not granted")
	}
}

// Where very many streams stand still, the sidecar does not keep them for long,
// nor what they have not read.
func TestVeryManyStreamsThatReadNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("300 streams")
	}
	const limit = 3 * time.Minute // the machine may be busy; Stall is much longer
	s := start(t, func(so *session.Options, o *Options) {
		so.TTL = lock.MaxTTL // or the lease may end when this process gets no processor
		o.Limits.Stall = time.Hour
	})
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	held := strings.Repeat("r", 500)
	x.acquire("1", tryOnce(held))
	lockID := x.answer("1").GetGranted().GetLockId()
	before := used()
	s.flooder(t, overGRPC, 300, held)
	eventuallyIn(t, limit, "closed", func() bool { return s.manager.Info().Sessions == 1 })
	if x.release("2", lockID).GetReleased() == nil {
		t.Error("not released")
	}
	took := 0
	eventuallyIn(t, limit, "given back", func() bool {
		took = used() - before
		return took < 16<<20
	})
	t.Logf("%d KiB are left", took>>10)
}

// A client that has asked much and reads nothing is cut off in the end, with a
// line in the log. One that reads slowly is not.
func TestStalledStreamEnds(t *testing.T) { overEachWire(t, testStalledStreamEnds) }

func testStalledStreamEnds(t *testing.T, w wireName) {
	var out logLines
	s := start(t, func(so *session.Options, o *Options) {
		so.TTL = time.Second // so long, from its last news, others are kept out of its locks
		o.Limits.Stall = 100 * time.Millisecond
		o.Logger = hclog.New(&hclog.LoggerOptions{Output: &out})
	})
	x := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
	x.acquire("l", &pb.AcquireRequest{Resource: "r"})
	x.answer("l")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		q := &pb.SessionRequest{RequestId: strings.Repeat("k", 128), Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: "none"}}}
		for x.Send(q) == nil { //nolint:revive // until the stream ends
		}
	}()
	eventually(t, "ended", func() bool { return s.manager.Info().Sessions == 0 && s.manager.Info().Holds == 0 })
	var err error
	for err == nil {
		_, err = x.Recv()
	}
	within(t, sent)
	// A line that ends half-way has no last word behind it: that is for who reads on in time.
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, errWithinLine) && reasonOf(t, err) != reasonLimit {
		t.Errorf("ended with %v", err)
	}
	eventually(t, "logged", func() bool { return strings.Contains(out.String(), "[WARN]  stream ended: its client reads nothing") })
}

// An answer over HTTP that nobody reads is not kept, and a long wait before the
// answer is not counted.
func TestUnreadAnswers(t *testing.T) {
	var out logLines
	s := start(t, noNews, logTo(&out), func(_ *session.Options, o *Options) { o.Limits.Stall = time.Second }) // the app reads a thousand answers in time
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{Name: strings.Repeat("n", 128), Metadata: map[string]string{"k": strings.Repeat("v", 900)}})
	var first string
	for i := range 1000 {
		id := strconv.Itoa(i)
		x.acquire(id, &pb.AcquireRequest{Resource: "many/" + id})
		if g := x.answer(id).GetGranted(); i == 0 {
			first = g.GetLockId()
		}
	}
	held := make(chan int, 1)
	go func() {
		code, _ := call(t, s.http(t), "POST", "/v1/hold", `{"resource":"many/0","maxHold":"0.1s"}`)
		held <- code
	}()
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	for _, path := range []string{"/v1/locks?pageSize=1000", "/v1/watch"} {
		before := s.server.places.count()
		c := s.dial(t)
		if _, err := c.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1) // the answer has begun
		if _, err := c.Read(b); err != nil {
			t.Fatal(err)
		}
		eventually(t, "closed "+path, func() bool { return s.server.places.count() == before })
	}
	w, err := s.api(t).WatchLocks(t.Context(), &pb.WatchLocksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "ended", func() bool {
		s.server.watches.mu.Lock()
		defer s.server.watches.mu.Unlock()
		return len(s.server.watches.taken) == 1
	})
	eventually(t, "ended", func() bool {
		s.server.watches.mu.Lock()
		defer s.server.watches.mu.Unlock()
		return len(s.server.watches.taken) == 0
	})
	for err == nil {
		_, err = w.Recv()
	}
	if r := reasonOf(t, err); r != reasonLimit {
		t.Errorf("watch ended with %v", err)
	}
	eventually(t, "logged", func() bool { return strings.Count(out.String(), "stream ended: its client reads nothing") >= 2 })
	x.release("r", first)
	if code := within(t, held); code != 200 {
		t.Errorf("hold: %d", code)
	}
}

// The same for answers of which each fits into the socket, and not all that were
// asked for: on every path.
func TestUnreadPipelinedAnswers(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) {
		o.Limits.Stall = 100 * time.Millisecond
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4096)) })
	})
	for _, q := range []string{"GET /openapi.json", "GET /healthz", "GET /readyz", "GET /metrics", "PUT /v1/info", "GET /v1/info", "GET /none"} {
		c := s.dial(t)
		all := []byte(strings.Repeat(q+" HTTP/1.1\r\nHost: x\r\n\r\n", 100))
		for err := error(nil); err == nil; { // until the sidecar hangs up, or its end of the socket is full
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Second))
			_, err = c.Write(all)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection stays, though nobody reads", q)
			}
		}
	}
}

// listing opens a call of ListLocks with large pages, and reads nothing.
func listing(t *testing.T, cc *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	st, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, pb.LockSidecar_ListLocks_FullMethodName)
	if err == nil {
		err = errors.Join(st.SendMsg(&pb.ListLocksRequest{PageSize: 1000}), st.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// large makes a sidecar whose first page of locks is large.
func large(t *testing.T, stall time.Duration, change ...func(*session.Options, *Options)) *sidecar {
	t.Helper()
	s := start(t, append(change, noNews, func(_ *session.Options, o *Options) { o.Limits.Stall = stall })...)
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{Name: strings.Repeat("n", 128), Metadata: map[string]string{"k": strings.Repeat("v", 900)}})
	for i := range 1000 {
		id := strconv.Itoa(i)
		x.acquire(id, &pb.AcquireRequest{Resource: "many/" + id})
		x.answer(id)
	}
	return s
}

// counted is how many users have large answers that they have not read.
func (s *sidecar) counted() int {
	s.server.unread.mu.Lock()
	defer s.server.unread.mu.Unlock()
	return len(s.server.unread.taken)
}

// Answers over gRPC that nobody reads take a bounded amount of memory. Those that
// are read are not counted any more.
func TestMemoryOfUnreadAnswersOverGRPC(t *testing.T) {
	s := large(t, time.Hour)
	c := s.api(t)
	for range 2 * maxUnread >> 20 {
		if _, err := c.ListLocks(t.Context(), &pb.ListLocksRequest{PageSize: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "settled", func() bool { return s.counted() == 0 })
	before := used()
	const calls = 100                                                                                   // of more than 1 MiB each
	cc := s.dialGRPC(t, grpc.WithStaticConnWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10)) // or the client keeps much itself
	for range calls {
		listing(t, cc)
	}
	eventually(t, "one more is refused", func() bool { // as soon as enough of them are answered
		_, err := pb.NewLockSidecarClient(cc).ListLocks(t.Context(), &pb.ListLocksRequest{PageSize: 1000})
		return err != nil && reasonOf(t, err) == reasonLimit
	})
	took := 0
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) { // until the last has been refused
		if took = used() - before; took < 3*maxUnread || time.Now().After(end) {
			break
		}
	}
	t.Logf("%d calls: %d KiB", calls, took>>10)
	if took >= 3*maxUnread {
		t.Error("that is too much")
	}
}

func TestUnreadAnswerOverGRPC(t *testing.T) {
	var out logLines
	s := large(t, 100*time.Millisecond, logTo(&out))
	before := s.server.places.count()
	st := listing(t, s.dialGRPC(t))
	eventually(t, "counted", func() bool { return s.counted() == 1 || s.server.places.count() > before })
	eventually(t, "closed", func() bool { return s.counted() == 0 && s.server.places.count() == before })
	if st.RecvMsg(&pb.ListLocksResponse{}) == nil {
		t.Error("it was not cut off")
	}
	eventually(t, "logged", func() bool {
		return strings.Contains(out.String(), "[WARN]  connection closed: its client does not read an answer: pid=")
	})
}

func TestWatchesPerUID(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.WatchesPerUID = 2 })
	c := s.http(t)
	for range 2 {
		r, err := c.Get("http://x/v1/watch")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
	}
	code, body := call(t, c, "GET", "/v1/watch", "")
	if info := infoOf(t, jsonStatus(t, body)); code != 429 || info.GetReason() != "LIMIT_EXCEEDED" || info.GetMetadata()["max"] != "2" {
		t.Errorf("%d %s", code, body)
	}
}

// blockedLog never takes a line, until it is let go.
type blockedLog struct{ let chan struct{} }

func (b blockedLog) Write(p []byte) (int, error) {
	<-b.let
	return len(p), nil
}

// Apps are told of losses, and new readers of events are served, though the log
// blocks.
func TestLossIsToldWhileTheLogBlocks(t *testing.T) {
	log := blockedLog{let: make(chan struct{})}
	s := start(t, few, func(_ *session.Options, o *Options) {
		o.Logger = &quietUntilServing{Logger: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Debug})}
	})
	t.Cleanup(func() { close(log.let) })
	c := s.http(t)
	_, body := call(t, c, "POST", "/v1/sessions", `{"ttl":"60s"}`)
	id := field(t, body, "sessionId")
	if code, body := call(t, c, "POST", "/v1/sessions/"+id+"/locks", `{"resource":"r"}`); code != 200 {
		t.Fatal(body)
	}
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "s"})
	x.answer("1")
	for range 100 { // each is logged: silent ones that make room, and the end of those
		_ = s.dial(t).Close()
		s.dial(t)
	}
	go func() { _, _ = s.manager.Everybody().ForceRelease(t.Context(), "s", "", 0) }()
	if x.lost() == nil {
		t.Error("not told on the stream")
	}
	go func() { _, _ = s.manager.Everybody().ForceRelease(t.Context(), "r", "", 0) }()
	r, err := c.Get("http://x/v1/sessions/" + id + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	for sc := bufio.NewScanner(r.Body); sc.Scan(); {
		if strings.Contains(sc.Text(), `"lost"`) {
			return
		}
	}
	t.Error("not told by the events")
}

// quietUntilServing leaves out what is logged on the way to a served socket.
type quietUntilServing struct{ hclog.Logger }

func (q *quietUntilServing) Info(string, ...any) {}
