package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

// played is a sidecar that a test plays by hand: it takes one connection after another,
// and reads and writes when the test says so.
type played struct {
	t *testing.T
	l *net.UnixListener
	c *client.Client
}

func play(t *testing.T) *played {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &played{t: t, l: l}
	greeted := make(chan struct{})
	go func() {
		defer close(greeted)
		if c, err := l.Accept(); err == nil {
			_, _ = c.Read(make([]byte, 1000))
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	p.c, err = client.Dial(ctx, l.Addr().String())
	cancel() // it was only for this
	if err != nil {
		t.Fatal(err)
	}
	<-greeted
	t.Cleanup(func() { _ = p.c.Close() })
	return p
}

// accept takes the next connection.
func (p *played) accept() *hand {
	p.t.Helper()
	_ = p.l.SetDeadline(time.Now().Add(patience))
	c, err := p.l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	return &hand{t: p.t, lines: lines{cancel: func() {}, c: c, in: bufio.NewReader(c)}}
}

// hand is the sidecar's end of one connection.
type hand struct {
	t *testing.T
	lines
}

// next is the next request.
func (h *hand) next() *pb.SessionRequest {
	h.t.Helper()
	q, err := h.recv()
	if err != nil {
		h.t.Fatalf("the client has not asked: %v", err)
	}
	return q
}

func (h *hand) say(a *pb.SessionResponse) {
	h.t.Helper()
	if err := h.send(a); err != nil {
		h.t.Fatal(err)
	}
}

// raw says what is no answer of the API.
func (h *hand) raw(text string) {
	h.t.Helper()
	if _, err := io.WriteString(h.c, text); err != nil {
		h.t.Fatal(err)
	}
}

// skip reads so many bytes.
func (h *hand) skip(n int64) {
	h.t.Helper()
	if _, err := io.CopyN(io.Discard, h.in, n); err != nil {
		h.t.Fatal(err)
	}
}

// ends waits until the client has ended its side, and asked nothing more.
func (h *hand) ends() {
	h.t.Helper()
	if line, err := h.in.ReadString('\n'); line != "" || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) { // it may not have read all
		h.t.Errorf("the client has not ended the connection: %.200q, %v", line, err)
	}
}

func (h *hand) opened(q *pb.SessionRequest) {
	h.t.Helper()
	h.say(&pb.SessionResponse{RequestId: q.GetRequestId(), Response: &pb.SessionResponse_Opened{Opened: &pb.OpenSessionResponse{
		SessionId: "played", LeaseMargin: durationpb.New(scriptMargin), CountedAt: durationpb.New(lock.BootTime()),
	}}})
}

func (h *hand) granted(requestID, id string) {
	h.t.Helper()
	h.say(&pb.SessionResponse{RequestId: requestID, Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{
		LockId: id, Resource: id, Mode: pb.Mode_EXCLUSIVE, Fence: 1, Count: 1, CountedAt: durationpb.New(lock.BootTime()), ValidFor: durationpb.New(long),
	}}})
}

// result is what a call has returned.
type result[T any] struct {
	v   T
	err error
}

func call[T any](f func() (T, error)) <-chan result[T] {
	c := make(chan result[T], 1)
	go func() {
		v, err := f()
		c <- result[T]{v, err}
	}()
	return c
}

func returned[T any](t *testing.T, what string, c <-chan result[T]) (T, error) {
	t.Helper()
	select {
	case r := <-c:
		return r.v, r.err
	case <-time.After(patience):
		t.Fatalf("%s has not returned in time", what)
		panic("unreachable")
	}
}

// open is a session, and the sidecar's end of it.
func (p *played) open(o client.SessionOptions) (*client.Session, *hand) {
	p.t.Helper()
	opening := call(func() (*client.Session, error) { return p.c.OpenSession(p.t.Context(), o) })
	h := p.accept()
	h.opened(h.next())
	s, err := returned(p.t, "OpenSession", opening)
	if err != nil {
		p.t.Fatal(err)
	}
	return s, h
}

// What an app asks for reaches the sidecar to the nanosecond and the byte.
func TestWhatIsAsked(t *testing.T) {
	p := play(t)
	opening := call(func() (*client.Session, error) {
		return p.c.OpenSession(t.Context(), client.SessionOptions{Name: "n", Metadata: map[string]string{"k": "v"}, TTL: time.Hour + 1})
	})
	h := p.accept()
	q := h.next()
	if o := q.GetOpen(); o.GetName() != "n" || o.GetMetadata()["k"] != "v" || o.GetTtl().AsDuration() != time.Hour+1 {
		t.Errorf("asked %v", q)
	}
	h.opened(q)
	s, err := returned(t, "OpenSession", opening)
	if err != nil || s.ID() != "played" || s.Margin() != scriptMargin {
		t.Fatalf("%v, id %s, margin %s", err, s.ID(), s.Margin())
	}
	none := time.Duration(-1)
	for name, c := range map[string]struct {
		o             client.AcquireOptions
		wait, maxHold time.Duration
	}{
		"nothing":   {client.AcquireOptions{}, none, none},
		"no wait":   {client.AcquireOptions{Wait: client.NoWait}, 0, none},
		"short":     {client.AcquireOptions{Wait: 1, MaxHold: 1}, 1, 1},
		"of a kind": {client.AcquireOptions{Mode: client.Shared, Owner: "o", Reentrant: true, Direct: true}, none, none},
	} {
		acquiring := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "r", c.o) })
		q := h.next()
		a := q.GetAcquire()
		of := func(d *durationpb.Duration) time.Duration {
			if d == nil {
				return none
			}
			return d.AsDuration()
		}
		if a.GetResource() != "r" || a.GetMode() != c.o.Mode || a.GetOwner() != c.o.Owner || a.GetReentrant() != c.o.Reentrant || a.GetDirect() != c.o.Direct ||
			of(a.GetWait()) != c.wait || of(a.GetMaxHold()) != c.maxHold {
			t.Errorf("%s: asked %v", name, q)
		}
		h.granted(q.GetRequestId(), name)
		if l, err := returned(t, "Acquire", acquiring); err != nil || l.ID != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	looks := map[string]struct {
		look func() error
		want func(q *pb.SessionRequest) bool
	}{
		"Watch": {
			func() error {
				for _, err := range p.c.Watch(t.Context(), "p", time.Minute) {
					return err
				}
				return nil
			},
			func(q *pb.SessionRequest) bool {
				return q.GetWatchLocks().GetPrefix() == "p" && q.GetWatchLocks().GetInterval().AsDuration() == time.Minute
			},
		},
		"Watch with the usual interval": {
			func() error {
				for _, err := range p.c.Watch(t.Context(), "p", 0) {
					return err
				}
				return nil
			},
			func(q *pb.SessionRequest) bool {
				return q.GetWatchLocks() != nil && q.GetWatchLocks().GetInterval() == nil
			},
		},
		"Leader": {
			func() error { _, err := p.c.Leader(t.Context(), "p"); return err },
			func(q *pb.SessionRequest) bool { return q.GetGetLeader().GetResource() == "p" },
		},
		"WatchLeader": {
			func() error {
				for _, err := range p.c.WatchLeader(t.Context(), "p", time.Minute) {
					return err
				}
				return nil
			},
			func(q *pb.SessionRequest) bool {
				return q.GetWatchLeader().GetResource() == "p" && q.GetWatchLeader().GetInterval().AsDuration() == time.Minute
			},
		},
		"ForceRelease": {
			func() error { _, err := p.c.ForceRelease(t.Context(), "r", "i", time.Second); return err },
			func(q *pb.SessionRequest) bool {
				f := q.GetForceRelease()
				return f.GetResource() == "r" && f.GetLockId() == "i" && f.GetGrace().AsDuration() == time.Second
			},
		},
		"ForceRelease at once": {
			func() error { _, err := p.c.ForceRelease(t.Context(), "r", "", 0); return err },
			func(q *pb.SessionRequest) bool {
				f := q.GetForceRelease()
				return f.GetLockId() == "" && f.GetGrace() != nil && f.GetGrace().AsDuration() == 0
			},
		},
	}
	for name, l := range looks {
		looking := call(func() (struct{}, error) { return struct{}{}, l.look() })
		h := p.accept()
		if q := h.next(); !l.want(q) {
			t.Errorf("%s: asked %v", name, q)
		}
		h.raw(`{"requestId":"1","error":{"message":"no"}}` + "\n")
		if _, err := returned(t, name, looking); err == nil || !strings.HasSuffix(err.Error(), "no") {
			t.Errorf("%s: %v", name, err)
		}
		h.ends()
	}
}

const refusedAll = `{"error":{"message":"too many","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"LIMIT_EXCEEDED","domain":"locksidecar"}]}}` + "\n"

// The sidecar may refuse a connection, whatever is asked on it: that is told, and not asked
// again. So is what answers in another language.
func TestLooksThatAreRefused(t *testing.T) {
	p := play(t)
	for answer, want := range map[string]error{
		refusedAll:                          client.ErrLimitExceeded,
		"HTTP/1.1 400 Bad Request\r\n":      client.ErrNoSidecar,
		`{"requestId":"1","what":"?` + "\n": client.ErrNoSidecar,
	} {
		looking := call(func() (*pb.Info, error) { return p.c.Info(t.Context()) })
		h := p.accept()
		h.next()
		h.raw(answer)
		if i, err := returned(t, "Info", looking); !errors.Is(err, want) || i != nil {
			t.Errorf("%q: %v, %v", answer, i, err)
		}
		h.ends()
	}
}

// What the sidecar hangs up on is asked again, and nothing of the connection before is left.
func TestLooksAreAskedAgain(t *testing.T) {
	p := play(t)
	for name, c := range map[string]struct {
		look   func() (string, error)
		answer string
	}{
		"Get":  {func() (string, error) { l, err := p.c.Get(t.Context(), "r"); return l.GetResource(), err }, `"lock":{"resource":"r"}`},
		"Info": {func() (string, error) { i, err := p.c.Info(t.Context()); return i.GetSidecar(), err }, `"info":{"sidecar":"r"}`},
		"List": {func() (string, error) {
			for l, err := range p.c.List(t.Context(), "") {
				return l.GetResource(), err
			}
			return "", nil
		}, `"locks":{"locks":[{"resource":"r"}]}`},
		"Watch": {func() (string, error) {
			for e, err := range p.c.Watch(t.Context(), "", 0) {
				return e.GetLock().GetResource(), err
			}
			return "", nil
		}, `"watched":{"kind":"CHANGED","lock":{"resource":"r"}}`},
	} {
		looking := call(c.look)
		first := p.accept()
		first.next()
		_ = first.c.(*net.UnixConn).CloseWrite()
		h := p.accept()
		h.next()
		first.ends()
		h.raw(`{"requestId":"1",` + c.answer + "}\n")
		if r, err := returned(t, name, looking); err != nil || r != "r" {
			t.Errorf("%s: %q, %v", name, r, err)
		}
	}
}

// An endless answer is not read to its end.
func TestEndlessAnswer(t *testing.T) {
	p := play(t)
	looking := call(func() (*pb.Info, error) { return p.c.Info(t.Context()) })
	h := p.accept()
	h.next()
	written := call(func() (int, error) {
		n, part := 0, []byte(strings.Repeat(" ", 1<<20))
		for n < 1<<30 {
			m, err := h.c.Write(part)
			if n += m; err != nil {
				break
			}
		}
		return n, nil
	})
	_, err := returned(t, "Info", looking)
	if !errors.Is(err, client.ErrNoSidecar) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("%v", err)
	}
	if n, _ := returned(t, "writing", written); n < 64<<20 || n > 70<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}

// A look ends with its context, and with the client, also while the sidecar hangs up.
func TestLooksEnd(t *testing.T) {
	cause := errors.New("enough")
	t.Run("waiting for the answer", func(t *testing.T) {
		p := play(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		looking := call(func() (*pb.Lock, error) { return p.c.Get(ctx, "r") })
		h := p.accept()
		h.next()
		cancel(cause)
		if l, err := returned(t, "Get", looking); !errors.Is(err, cause) || l != nil {
			t.Errorf("%v, %v", l, err)
		}
		h.ends()
	})
	t.Run("hung up on", func(t *testing.T) {
		p := play(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		looking := call(func() (*pb.Lock, error) { return p.c.Get(ctx, "r") })
		for range 6 {
			_ = p.accept().c.Close()
		}
		time.Sleep(5 * time.Millisecond) // it pauses for longer now; else it asks, and gets no answer
		cancel(cause)
		if l, err := returned(t, "Get", looking); !errors.Is(err, cause) || l != nil {
			t.Errorf("%v, %v", l, err)
		}
	})
	t.Run("the caller stops to range", func(t *testing.T) {
		p := play(t)
		ctx, cancel := context.WithCancel(context.Background()) // of the app: it goes on
		defer cancel()
		watching := call(func() (string, error) {
			for e, err := range p.c.Watch(ctx, "", 0) {
				return e.GetLock().GetResource(), err
			}
			return "", nil
		})
		h := p.accept()
		h.next()
		h.raw(`{"requestId":"1","watched":{"kind":"CHANGED","lock":{"resource":"r"}}}` + "\n")
		if r, err := returned(t, "Watch", watching); err != nil || r != "r" {
			t.Errorf("%q %v", r, err)
		}
		h.ends()
	})
	t.Run("the client is closed", func(t *testing.T) {
		p := play(t)
		looking := call(func() (*pb.Lock, error) { return p.c.Get(t.Context(), "r") })
		h := p.accept()
		h.next()
		_ = p.c.Close()
		if _, err := returned(t, "Get", looking); !errors.Is(err, client.ErrNoSidecar) {
			t.Error(err)
		}
		h.ends()
		for what, err := range map[string]error{
			"Get":         func() error { _, err := p.c.Get(t.Context(), "r"); return err }(),
			"OpenSession": func() error { _, err := p.c.OpenSession(t.Context(), client.SessionOptions{}); return err }(),
		} {
			if err == nil {
				t.Errorf("%s on a closed client: no error", what)
			}
		}
	})
}

// Each page of a list is asked for with the token of the one before, and the list ends with
// the last page, with an error, or when the caller has enough.
func TestListInPages(t *testing.T) {
	p := play(t)
	names := func(most int) <-chan result[[]string] {
		return call(func() (all []string, err error) {
			for l, err := range p.c.List(t.Context(), "p") {
				if err != nil {
					return all, err
				}
				if all = append(all, l.GetResource()); len(all) == most {
					break
				}
			}
			return all, nil
		})
	}
	page := func(token, answer string) {
		t.Helper()
		h := p.accept()
		if l := h.next().GetListLocks(); l.GetPrefix() != "p" || l.GetPageToken() != token || l.GetPageSize() != 1000 || !l.GetPartial() {
			t.Errorf("asked %v, want the page at %q", l, token)
		}
		h.raw(answer + "\n")
		h.ends()
	}
	const first, last = `{"requestId":"1","locks":{"locks":[{"resource":"pa"},{"resource":"pb"}],"nextPageToken":"x"}}`, `{"requestId":"1","locks":{"locks":[{"resource":"pc"}]}}`
	check := func(c <-chan result[[]string], want string, ok bool) {
		t.Helper()
		if all, err := returned(t, "List", c); strings.Join(all, " ") != want || (err == nil) != ok {
			t.Errorf("%v, %v, want %q", all, err, want)
		}
	}
	c := names(-1)
	page("", first)
	page("x", last)
	check(c, "pa pb pc", true)
	c = names(1)
	page("", first)
	check(c, "pa", true)
	c = names(-1)
	page("", first)
	page("x", strings.TrimSpace(refusedAll))
	check(c, "pa pb", false)
	c = names(-1)
	page("", `{"requestId":"1","locks":{"locks":[{"resource":"pa"}],"nextPageToken":"x","missingShards":["s2","s1"]}}`)
	page("x", `{"requestId":"1","locks":{"locks":[{"resource":"pc"}],"missingShards":["s2"]}}`)
	all, err := returned(t, "List", c)
	var lacks *client.IncompleteError
	if strings.Join(all, " ") != "pa pc" || !errors.As(err, &lacks) || strings.Join(lacks.Missing, " ") != "s1 s2" || !errors.Is(err, client.ErrStoreUnavailable) {
		t.Errorf("%v, %v, want that s1 and s2 are missing", all, err)
	}
}
