package localapi

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// BenchmarkSession is an acquire and a release on one stream, on the embedded
// store; BenchmarkEcho and BenchmarkLineEcho are two messages on a bare gRPC stream and
// two lines over the same kind of socket. What lies between them is ours.
func BenchmarkSession(b *testing.B) {
	for _, w := range []wireName{overGRPC, overLines} {
		for _, callers := range []int{1, 16} {
			b.Run(string(w)+"/"+strconv.Itoa(callers), func(b *testing.B) {
				s := start(b)
				var all []*stream
				for range callers {
					all = append(all, s.stream(b, s.streams(b, w), &pb.OpenSessionRequest{}))
				}
				b.ReportAllocs()
				b.ResetTimer()
				defer cpu(b)()
				var wg sync.WaitGroup
				for i, x := range all {
					wg.Go(func() {
						r := "r" + strconv.Itoa(i)
						for range b.N / callers {
							x.acquire("a", &pb.AcquireRequest{Resource: r, Wait: durationpb.New(0)})
							x.release("b", x.answer("a").GetGranted().GetLockId())
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// BenchmarkHTTP is an acquire and a release over HTTP, with a client that allocates nothing.
func BenchmarkHTTP(b *testing.B) {
	s := start(b)
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	buffer := make([]byte, 4<<10)
	call := func(request ...string) []byte {
		q := buffer[:0]
		for _, part := range request {
			q = append(q, part...)
		}
		if _, err := c.Write(q); err != nil {
			b.Fatal(err)
		}
		n, err := c.Read(buffer) // the server writes head and body at once
		if a := buffer[:n]; err != nil || !bytes.HasPrefix(a, []byte("HTTP/1.1 200 OK\r\n")) || a[n-1] != '\n' {
			b.Fatalf("%q: %v", a, err)
		}
		return buffer[:n]
	}
	id := func(name string, text []byte) string {
		_, text, _ = bytes.Cut(text, []byte(`"`+name+`":"`))
		text, _, _ = bytes.Cut(text, []byte(`"`))
		return string(text)
	}
	const head = " HTTP/1.1\r\nHost: locksidecar\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n"
	post := func(path, body string) string {
		return "POST " + path + head + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	locks := "/v1/sessions/" + id("sessionId", call(post("/v1/sessions", `{"liveness":"PROCESS"}`))) + "/locks"
	acquire := post(locks, `{"resource":"orders/42","wait":"5s"}`)
	b.ReportAllocs()
	b.ResetTimer()
	defer cpu(b)()
	for b.Loop() {
		call("DELETE ", locks, "/", id("lockId", call(acquire)), head, "\r\n")
	}
}

func BenchmarkLineEcho(b *testing.B) {
	for _, callers := range []int{1, 16} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			l, err := net.Listen("unix", filepath.Join(socketDir(b), "e"))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			line := []byte(`{"requestId":"1","acquire":{"resource":"orders/42","wait":"5s"}}` + "\n")
			var all []net.Conn
			for range callers {
				c, err := net.Dial("unix", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				all = append(all, c)
				server, err := l.Accept()
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					_, _ = io.Copy(struct{ io.Writer }{server}, server) // without the system's own way to copy
					_ = server.Close()
				}()
			}
			b.ResetTimer()
			defer cpu(b)()
			var wg sync.WaitGroup
			for _, c := range all {
				wg.Go(func() {
					answer := make([]byte, len(line))
					for range 2 * (b.N / callers) {
						if _, err := c.Write(line); err != nil {
							b.Error(err)
						}
						if _, err := io.ReadFull(c, answer); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// cpu adds the processor time of both ends to the report: on a busy machine it
// tells more than the time.
func cpu(b *testing.B) func() {
	var before unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	return func() {
		var after unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
		spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/op")
	}
}

type echo struct {
	pb.UnimplementedLockSidecarServer
}

func (echo) Session(st grpc.BidiStreamingServer[pb.SessionRequest, pb.SessionResponse]) error {
	for {
		q, err := st.Recv()
		if err != nil {
			return err
		}
		a := &pb.SessionResponse{RequestId: q.GetRequestId(), Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{Resource: "r", LockId: "0123456789abcdef0123456789abcdef"}}}
		if err := st.Send(a); err != nil {
			return err
		}
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, callers := range []int{1, 16} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			path := filepath.Join(socketDir(b), "e")
			l, err := net.Listen("unix", path)
			if err != nil {
				b.Fatal(err)
			}
			g := grpc.NewServer()
			pb.RegisterLockSidecarServer(g, echo{})
			var serving sync.WaitGroup
			serving.Go(func() { _ = g.Serve(l) })
			defer serving.Wait()
			defer g.Stop()
			var all []pb.LockSidecar_SessionClient
			for range callers {
				cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = cc.Close() }()
				st, err := pb.NewLockSidecarClient(cc).Session(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, st)
			}
			b.ReportAllocs()
			b.ResetTimer()
			defer cpu(b)()
			var wg sync.WaitGroup
			for _, st := range all {
				wg.Go(func() {
					for range 2 * (b.N / callers) {
						if err := st.Send(&pb.SessionRequest{RequestId: "a", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r"}}}); err != nil && err != io.EOF { //nolint:errorlint // as gRPC says
							b.Error(err)
						}
						if _, err := st.Recv(); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
