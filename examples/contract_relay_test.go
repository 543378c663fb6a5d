package examples

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// withholder is a socket before a sidecar's that withholds the lines whose event has a field.
type withholder struct {
	socket  string
	sidecar string
	without string
	count   atomic.Int64
	running sync.WaitGroup

	mu    sync.Mutex
	over  bool
	conns []net.Conn
}

func withhold(t *testing.T, sidecar, without string) *withholder {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsw")
	if err != nil {
		t.Fatal(err)
	}
	w := &withholder{socket: filepath.Join(dir, "s"), sidecar: sidecar, without: without}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	w.running.Go(func() {
		for {
			app, err := listener.Accept()
			if err != nil {
				return
			}
			w.relay(app)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		w.close()
		w.running.Wait()
		_ = os.RemoveAll(dir)
	})
	return w
}

func (w *withholder) lines() int { return int(w.count.Load()) }

func (w *withholder) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func (w *withholder) relay(app net.Conn) {
	sidecar, err := new(net.Dialer).Dial("unix", w.sidecar)
	if err != nil {
		_ = app.Close()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, app, sidecar)
	if w.over {
		_ = app.Close()
		_ = sidecar.Close()
	}
	w.running.Go(func() {
		_, _ = io.Copy(sidecar, app) // either may end
		_ = sidecar.(*net.UnixConn).CloseWrite()
	})
	w.running.Go(func() {
		defer app.Close()
		defer sidecar.Close()
		for r := bufio.NewReader(sidecar); ; {
			line, err := r.ReadBytes('\n')
			if w.withholds(line) {
				w.count.Add(1)
			} else if _, e := app.Write(line); e != nil {
				return
			}
			if err != nil {
				return
			}
		}
	})
}

func (w *withholder) withholds(line []byte) bool {
	var m struct{ Event map[string]json.RawMessage }
	if json.Unmarshal(line, &m) != nil {
		return false
	}
	_, is := m.Event[w.without]
	return is
}
