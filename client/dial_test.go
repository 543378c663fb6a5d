package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/client"
)

// front listens where nobody accepts yet. The kernel takes a few connections
// and refuses more.
func front(t *testing.T, backlog int) (path string, listen func() net.Listener) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, backlog)); err != nil {
		t.Fatal(err)
	}
	return path, func() net.Listener {
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
}

// pass hands connections over to a sidecar, after it has hung up on the first.
func pass(t *testing.T, l net.Listener, sidecar string, hangUps int) {
	var running sync.WaitGroup
	running.Go(func() {
		for n := 0; ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if n < hangUps {
				_ = in.Close()
				continue
			}
			running.Go(func() {
				defer in.Close()
				out, err := net.Dial("unix", sidecar)
				if err != nil {
					return
				}
				defer out.Close()
				running.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
				_, _ = io.Copy(in, out)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
}

func usable(t *testing.T, path string) {
	t.Helper()
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := c.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := acquire(t, x, "r", client.AcquireOptions{}).Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// A sidecar hangs up on those who are too slow to say what they want; they call
// again.
func TestDialAgain(t *testing.T) {
	s := start(t)
	path, listen := front(t, 100)
	pass(t, listen(), s.socket, 3)
	usable(t, path)
}

// fill makes as many connections as the kernel keeps.
func fill(t *testing.T, path string) (silent []net.Conn) {
	t.Helper()
	for {
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			return silent
		}
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
}

// More apps call at the same time than the sidecar has accepted.
func TestDialManyAtATime(t *testing.T) {
	s := start(t)
	path, listen := front(t, 0)
	silent := fill(t, path)
	dialled := make(chan struct{})
	go func() { defer close(dialled); usable(t, path) }()
	select {
	case <-dialled:
		t.Error("nobody accepts, and Dial has returned")
	case <-time.After(50 * time.Millisecond):
	}
	pass(t, listen(), s.socket, 0)
	within(t, "dialled", dialled)
	for _, c := range silent {
		_ = c.Close()
	}
}

// Dial ends with its context: before it is connected, while nobody answers, and where the
// kernel takes no more.
func TestDialGivenUp(t *testing.T) {
	for name, until := range map[string]func(t *testing.T) (path string, ready func()){
		"at once": func(t *testing.T) (string, func()) {
			path, _ := front(t, 1)
			return path, func() {}
		},
		"connected": func(t *testing.T) (string, func()) {
			path, listen := front(t, 1)
			l := listen()
			return path, func() {
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				if _, err := c.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		},
		"refused": func(t *testing.T) (string, func()) {
			path, _ := front(t, 0)
			for _, c := range fill(t, path) {
				t.Cleanup(func() { _ = c.Close() })
			}
			return path, func() { time.Sleep(10 * time.Millisecond) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, ready := until(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			dialling := call(func() (*client.Client, error) { return client.Dial(ctx, path) })
			ready()
			cause := errors.New("enough")
			cancel(cause)
			select {
			case r := <-dialling:
				if !errors.Is(r.err, cause) || r.v != nil {
					t.Error(r.err)
				}
			case <-time.After(4 * time.Second): // less than the limit of one attempt
				t.Error("Dial outlives its context")
			}
		})
	}
}

// Where nothing listens there is nothing to wait for.
func TestDialNothing(t *testing.T) {
	path, _ := front(t, 1)
	for name, p := range map[string]string{"no file": path + "-no", "not a socket": filepath.Dir(path)} {
		began := time.Now()
		if _, err := client.Dial(t.Context(), p); !errors.Is(err, client.ErrNoSidecar) || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %v after %s", name, err, time.Since(began))
		}
	}
}
