package localapi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// freezable is a sidecar that is a process of its own.
func freezable(t *testing.T, stall time.Duration) (*sidecar, *exec.Cmd) {
	t.Helper()
	s := &sidecar{socket: filepath.Join(socketDir(t), "s.sock")}
	p := process(t, "ready", childEnv+"=sidecar", socketEnv+"="+s.socket, stallEnv+"="+stall.String())
	return s, p
}

// standsStill stops a process for so long.
func standsStill(t *testing.T, p *exec.Cmd, d time.Duration) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "stopped", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "T")
	})
	time.Sleep(d)
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// TestStandstillOfTheSidecar: a sidecar that stands still itself, for longer than a client may take to read, cuts nobody off.
func TestStandstillOfTheSidecar(t *testing.T) { overEachWire(t, testStandstillOfTheSidecar) }

func testStandstillOfTheSidecar(t *testing.T, w wireName) {
	const (
		stall = 4 * time.Second
		many  = 20_000 // requests: their answers are more than is on the way to a client
	)
	for tries := 0; ; tries++ {
		s, p := freezable(t, stall)
		x := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
		x.acquire("l", tryOnce("r"))
		lockID := x.answer("l").GetGranted().GetLockId()
		began := time.Now()
		sent := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < many && err == nil; i++ {
				err = x.Send(&pb.SessionRequest{RequestId: strconv.Itoa(i), Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: "none"}}})
			}
			sent <- err
		}()
		time.Sleep(stall / 8) // until it stands there, on a machine that is not busy
		read := make(chan error, 1)
		stopped := make(chan struct{})
		go func() {
			<-stopped
			read <- readAll(x, many)
		}()
		if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		late := time.Since(began) > stall/2
		close(stopped)
		standsStill(t, p, stall+stall/4)
		if late && tries < 5 { // the client may have read nothing for too long before
			x.cancel()
			_, _ = <-sent, <-read
			continue
		}
		if err := within(t, read); err != nil {
			t.Fatalf("the client was cut off: %v", err)
		}
		if err := within(t, sent); err != nil {
			t.Fatal(err)
		}
		if a := x.release("last", lockID); a.GetReleased() == nil {
			t.Errorf("the lock is lost: %v", a)
		}
		return
	}
}

// readAll reads so many answers.
func readAll(x *stream, n int) error {
	for n > 0 {
		a, err := x.Recv()
		if err != nil {
			return err
		}
		if a.GetEvent() == nil {
			n--
		}
	}
	return nil
}

// TestStandstillOfTheSidecarWithALargeAnswer: that one does not cost a client its connection either, with all its locks.
func TestStandstillOfTheSidecarWithALargeAnswer(t *testing.T) {
	const stall = 4 * time.Second
	for tries := 0; ; tries++ {
		s, p := freezable(t, stall)
		y := s.stream(t, s.api(t), &pb.OpenSessionRequest{Name: strings.Repeat("n", 128), Metadata: map[string]string{"k": strings.Repeat("v", 900)}})
		for i := range 1000 {
			id := strconv.Itoa(i)
			y.acquire(id, &pb.AcquireRequest{Resource: "many/" + id})
			y.answer(id)
		}
		cc := s.dialGRPC(t, grpc.WithStaticConnWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
		x := s.stream(t, pb.NewLockSidecarClient(cc), &pb.OpenSessionRequest{})
		x.acquire("l", tryOnce("r"))
		lockID := x.answer("l").GetGranted().GetLockId()
		began := time.Now()
		st := listing(t, cc)
		if _, err := st.Header(); err != nil { // it is on its way
			t.Fatal(err)
		}
		if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		late := time.Since(began) > stall/2
		read := make(chan error, 1)
		go func() { read <- st.RecvMsg(&pb.ListLocksResponse{}) }()
		standsStill(t, p, stall+stall/4)
		err := within(t, read)
		if late && tries < 5 {
			continue
		}
		if err != nil {
			t.Fatalf("the client was cut off: %v", err)
		}
		if a := x.release("last", lockID); a.GetReleased() == nil {
			t.Errorf("the lock is lost: %v", a)
		}
		return
	}
}

// TestLocksOfAClientThatWasCutOff: it was told that it can rely on them, and may be frozen. So nobody else has them before that time is
// over, or its process has ended.
func TestLocksOfAClientThatWasCutOff(t *testing.T) { overEachWire(t, testLocksOfAClientThatWasCutOff) }

func testLocksOfAClientThatWasCutOff(t *testing.T, w wireName) {
	var out logLines
	s := start(t, logTo(&out), func(so *session.Options, o *Options) {
		so.TTL = lock.MaxTTL
		o.Limits.Stall = 500 * time.Millisecond
	})
	app := s.flooder(t, w, 1, "", takeEnv+"=r")
	eventually(t, "cut off", func() bool { return strings.Contains(out.String(), "[WARN]  stream ended: its client reads nothing") })
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	if x.gets(t, "r") {
		t.Fatal("another has the lock, though the first was told that it can rely on it for minutes")
	}
	if err := app.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "granted", func() bool { return x.gets(t, "r") })
}

// gets tries several times: what is released in the background is free a moment later.
func (x *stream) gets(t *testing.T, resource string) bool {
	t.Helper()
	for i := range 10 {
		id := "try " + strconv.Itoa(i)
		x.acquire(id, tryOnce(resource))
		if x.answer(id).GetGranted() != nil {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// TestLocksOfAConnectionThatWasCutOff: the same where it is not the stream that was not read.
func TestLocksOfAConnectionThatWasCutOff(t *testing.T) {
	s := large(t, 500*time.Millisecond)
	other := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	other.acquire("1", tryOnce("w"))
	other.answer("1")
	cc := s.dialGRPC(t, grpc.WithStaticConnWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
	x := s.stream(t, pb.NewLockSidecarClient(cc), &pb.OpenSessionRequest{})
	x.acquire("1", tryOnce("r"))
	if x.answer("1").GetGranted() == nil {
		t.Fatal("not granted")
	}
	x.acquire("2", &pb.AcquireRequest{Resource: "w"})
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	listing(t, cc)
	eventually(t, "cut off", func() bool { return s.manager.Info().Waiters == 0 })
	if other.gets(t, "r") {
		t.Error("another has the lock, though the first was told that it can rely on it for minutes")
	}
}

// TestStandstillOfTheSidecarWithAWatch: who watches, and reads, goes on after it.
func TestStandstillOfTheSidecarWithAWatch(t *testing.T) {
	for name, watch := range map[string]func(*testing.T, *sidecar) (read func() error){
		"gRPC": func(t *testing.T, s *sidecar) func() error {
			cc := s.dialGRPC(t, grpc.WithStaticConnWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
			st, err := pb.NewLockSidecarClient(cc).WatchLocks(t.Context(), &pb.WatchLocksRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return func() error {
				for {
					if e, err := st.Recv(); err != nil || e.GetKind() == pb.WatchEvent_SYNCED {
						return err
					}
				}
			}
		},
		"lines": func(t *testing.T, s *sidecar) func() error {
			return synced(s.says(t, `{"requestId":"1","watchLocks":{}}`+"\n"))
		},
		"HTTP": func(t *testing.T, s *sidecar) func() error {
			return synced(s.says(t, "GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const stall = 4 * time.Second
			for tries := 0; ; tries++ {
				s, p := freezable(t, stall)
				y := s.stream(t, s.api(t), &pb.OpenSessionRequest{Name: strings.Repeat("n", 128), Metadata: map[string]string{"k": strings.Repeat("v", 900)}})
				for i := range 1000 {
					id := strconv.Itoa(i)
					y.acquire(id, &pb.AcquireRequest{Resource: "many/" + id})
					y.answer(id)
				}
				began := time.Now()
				read := watch(t, s)
				time.Sleep(stall / 8) // until it has filled what is on the way, on a machine that is not busy
				if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				late := time.Since(began) > stall/2
				end := make(chan error, 1)
				go func() { end <- read() }()
				standsStill(t, p, stall+stall/4)
				err := within(t, end)
				if late && tries < 5 {
					continue
				}
				if err != nil {
					t.Errorf("the watch ended: %v", err)
				}
				return
			}
		})
	}
}

// synced reads a watch until all was said that was there.
func synced(x *said) func() error {
	return func() error {
		for {
			line, err := x.in.ReadString('\n')
			if err != nil || strings.Contains(line, `"SYNCED"`) {
				return err
			}
		}
	}
}
