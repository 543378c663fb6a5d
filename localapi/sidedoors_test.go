package localapi

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/session"
)

const (
	onePod     = "8f1c0a52-3c1b-4a6e-9d7e-0b1a2c3d4e5f"
	anotherPod = "11111111-2222-4333-8444-555555555555"
)

// sideFolder is a folder for side doors, with one for each name.
func sideFolder(t *testing.T, names ...string) string {
	t.Helper()
	dir := socketDir(t)
	for _, name := range names {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func sideDoor(folder, pod string) string { return filepath.Join(folder, pod, "s.sock") }

// TestSideDoors: each pod has a socket as long as it has a folder; nothing else has one.
func TestSideDoors(t *testing.T) {
	dir := sideFolder(t, onePod, "."+anotherPod, "none")
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("0", 32)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out logLines
	s := start(t, logTo(&out), func(so *session.Options, lo *Options) { so.Sidecar, lo.SideDoors, lo.Mode = "first", dir, 0o606 })
	answers := func(pod, want string) {
		t.Helper()
		eventually(t, "who answers: "+want, func() bool { return nameAt(sideDoor(dir, pod)) == want })
	}
	if got := nameAt(sideDoor(dir, onePod)); got != "first" { // from the beginning
		t.Errorf("%q answers", got)
	}
	if info, err := os.Stat(sideDoor(dir, onePod)); err != nil || info.Mode().Perm() != 0o606 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Rename(filepath.Join(dir, "."+anotherPod), filepath.Join(dir, anotherPod)); err != nil {
		t.Fatal(err)
	}
	answers(anotherPod, "first")
	c, err := net.Dial("unix", sideDoor(dir, onePod))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	held, err := os.Open(filepath.Join(dir, onePod))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if err := os.RemoveAll(filepath.Join(dir, onePod)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, onePod), 0o755); err != nil { // as the driver does when somebody has removed it
		t.Fatal(err)
	}
	answers(onePod, "first")
	if _, err := io.WriteString(c, "GET /v1/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if said, err := io.ReadAll(c); err != nil || !strings.Contains(string(said), "200 OK") {
		t.Errorf("a connection that was there: %q %v", said, err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "none")); err != nil || len(entries) > 0 {
		t.Errorf("what is no pod's has %v, %v", entries, err)
	}
	if err := os.Remove(filepath.Join(dir, anotherPod, "s.sock")); err != nil {
		t.Fatal(err)
	}
	answers(anotherPod, "first")
	s.stop()
	answers(anotherPod, "")
	if strings.Contains(out.String(), "ERROR") {
		t.Errorf("the log: %s", out.String())
	}
}

// TestSideDoorsAreReplaced: the side doors are with who has the main one.
func TestSideDoorsAreReplaced(t *testing.T) {
	dir := sideFolder(t, onePod)
	var path string
	named := func(name string) *sidecar {
		s := start(t, func(so *session.Options, lo *Options) {
			so.Sidecar, lo.SideDoors, lo.Replace = name, dir, true
			if path != "" {
				lo.Socket = path
			}
		})
		path = s.socket
		return s
	}
	first := named("first")
	for range 2 {
		second := named("second")
		for end := time.Now().Add(2*sideLook + firstLook); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if got := nameAt(sideDoor(dir, onePod)); got != "second" {
				t.Fatalf("%q answers", got)
			}
		}
		second.stop()
		eventually(t, "the first one answers", func() bool { return nameAt(sideDoor(dir, onePod)) == "first" })
	}
	first.stop()
}

// TestSideDoorsGoWrong: what is wrong with one door is logged once, is in no other door's way, and is tried again.
func TestSideDoorsGoWrong(t *testing.T) {
	dir := sideFolder(t, onePod, anotherPod)
	if err := os.Mkdir(sideDoor(dir, onePod), 0o755); err != nil {
		t.Fatal(err)
	}
	var out logLines
	start(t, logTo(&out), func(so *session.Options, lo *Options) { so.Sidecar, lo.SideDoors = "first", dir })
	if got := nameAt(sideDoor(dir, anotherPod)); got != "first" {
		t.Errorf("%q answers", got)
	}
	time.Sleep(2 * sideLook)
	if n := strings.Count(out.String(), "[ERROR] cannot serve the socket of a pod; trying again and again: socket="+sideDoor(dir, onePod)); n != 1 {
		t.Errorf("%d lines: %s", n, out.String())
	}
	if err := os.Remove(sideDoor(dir, onePod)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is right again", func() bool { return nameAt(sideDoor(dir, onePod)) == "first" })
	if files, err := os.ReadDir(filepath.Join(dir, onePod)); err != nil || len(files) != 1 {
		t.Errorf("left: %v %v", files, err)
	}
}

// TestNoSideDoors: a folder that is not there is logged once, and is in nobody's way.
func TestNoSideDoors(t *testing.T) {
	var out logLines
	dir := filepath.Join(socketDir(t), "none")
	s := start(t, logTo(&out), func(so *session.Options, lo *Options) { so.Sidecar, lo.SideDoors = "first", dir })
	if got := nameAt(s.socket); got != "first" {
		t.Errorf("%q answers", got)
	}
	time.Sleep(2 * sideLook)
	if n := strings.Count(out.String(), "ERROR"); n != 1 {
		t.Errorf("%d lines: %s", n, out.String())
	}
	if err := os.MkdirAll(filepath.Join(dir, onePod), 0o755); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is served", func() bool { return nameAt(sideDoor(dir, onePod)) == "first" })
}

// storming is a listener that always has one more.
type storming struct{ taken int }

func (l *storming) AcceptUnix() (*net.UnixConn, error) {
	l.taken++
	return nil, net.ErrClosed
}

// TestPace: who connects all the time is taken so often a second, and after a pause so often at once.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace()
		in := func(d time.Duration) (n, pauses int) {
			for end := time.Now().Add(d); ; n++ {
				wait := p.next(time.Now())
				if wait > 0 {
					pauses++
				}
				if time.Now().Add(wait).After(end) {
					time.Sleep(time.Until(end))
					return n, pauses
				}
				time.Sleep(wait)
			}
		}
		if n, pauses := in(10 * time.Second); n < connectsAtOnce+9900 || n > connectsAtOnce+10100 || pauses > 1100 {
			t.Errorf("%d in 10 s, with %d pauses", n, pauses)
		}
		time.Sleep(time.Minute)
		if n, _ := in(time.Second); n < connectsAtOnce+900 || n > connectsAtOnce+1100 {
			t.Errorf("%d in a second after a pause", n)
		}
		time.Sleep(time.Minute)
		if wait := p.next(time.Now()); wait > 0 {
			t.Errorf("one who comes now and then waits %s", wait)
		}
		// A server that stops waits for nobody's turn.
		s := New(Options{Logger: hclog.NewNullLogger()})
		defer s.workers.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.left = -1e6
		begin, l := time.Now(), &storming{}
		s.accept(ctx, l, nil, p)
		if took := time.Since(begin); took > 0 || l.taken > 0 {
			t.Errorf("it took %s, and took %d", took, l.taken)
		}
	})
}
