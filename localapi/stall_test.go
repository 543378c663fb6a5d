package localapi

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
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
func (s *sidecar) flooder(t *testing.T, streams int) {
	t.Helper()
	app := exec.Command("/proc/self/exe")
	app.Env = append(os.Environ(), childEnv+"=flooder", socketEnv+"="+s.socket, countEnv+"="+strconv.Itoa(streams))
	app.Stderr = os.Stderr
	out, err := app.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = app.Process.Kill(), app.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "stuck\n" {
		t.Fatalf("%q %v", line, err)
	}
}

// A stream that asks and reads nothing costs a bounded amount of memory.
func TestMemoryOfStreamsThatReadNothing(t *testing.T) {
	const n = 60
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Stall = time.Hour })
	before := used()
	s.flooder(t, n)
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
		t.Skip("400 streams")
	}
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Stall = time.Hour })
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	before := used()
	s.flooder(t, 400)
	eventually(t, "closed", func() bool { return s.manager.Info().Sessions == 1 })
	x.acquire("1", tryOnce("r"))
	if x.answer("1").GetGranted() == nil {
		t.Error("not granted")
	}
	took := 0
	eventually(t, "given back", func() bool {
		took = used() - before
		return took < 16<<20
	})
	t.Logf("%d KiB are left", took>>10)
}

// A client that has asked much and reads nothing is cut off in the end, with a
// line in the log. One that reads slowly is not.
func TestStalledStreamEnds(t *testing.T) {
	var out logLines
	s := start(t, func(_ *session.Options, o *Options) {
		o.Limits.Stall = 100 * time.Millisecond
		o.Logger = hclog.New(&hclog.LoggerOptions{Output: &out})
	})
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
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
	if r := reasonOf(t, err); r != reasonLimit {
		t.Errorf("ended with %v", err)
	}
	eventually(t, "logged", func() bool { return strings.Contains(out.String(), "[WARN]  stream ended: its client reads nothing") })
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
	go func() { _, _ = s.manager.ForceRelease(t.Context(), "s", "", 0) }()
	if x.lost() == nil {
		t.Error("not told on the stream")
	}
	go func() { _, _ = s.manager.ForceRelease(t.Context(), "r", "", 0) }()
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
