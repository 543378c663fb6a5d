package torture

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// size is what a sidecar takes of its machine.
type size struct {
	goroutines, files int
	memory            int // resident and its own, in MiB
}

func (s size) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d MiB", s.goroutines, s.files, s.memory)
}

// grown is how much more an idle sidecar may have than one that has just started: what
// pools of connections keep for a while, and what the heap keeps for the next time.
// However long the run was, it is the same.
var grown = size{goroutines: 40, files: 40, memory: 32}

func (s size) within(o size) bool {
	return s.goroutines <= o.goroutines && s.files <= o.files && s.memory <= o.memory
}

func (s size) plus(o size) size {
	return size{s.goroutines + o.goroutines, s.files + o.files, s.memory + o.memory}
}

// size looks at the sidecar.
func (s *side) size() (n size, err error) {
	proc := fmt.Sprintf("/proc/%d/", s.p.cmd.Process.Pid)
	files, err := os.ReadDir(proc + "fd")
	if err != nil {
		return n, err
	}
	n.files = len(files)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return n, err
	}
	kib, err := number(string(status), "RssAnon:")
	if err != nil {
		return n, err
	}
	n.memory = kib >> 10
	metrics, err := s.metrics()
	if err != nil {
		return n, err
	}
	n.goroutines, err = number(metrics, "go_goroutines")
	return n, err
}

func (s *side) metrics() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	c := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
		},
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://locksidecar/metrics", nil)
	if err != nil {
		return "", err
	}
	a, err := c.Do(q)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	return string(text), err
}

// number is what stands behind a name at the beginning of a line.
func number(text, name string) (int, error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			return strconv.Atoi(words[1])
		}
	}
	return 0, fmt.Errorf("there is no %s", name)
}

// flat finds sidecars that have grown. All apps have ended.
func (w *world) flat() {
	for _, s := range w.sides {
		var n size
		err := eventually(func() (err error) {
			if n, err = s.size(); err == nil && !n.within(w.fresh.plus(grown)) {
				err = fmt.Errorf("it has %s", n)
			}
			return err
		})
		if err != nil {
			w.found = append(w.found, fmt.Sprintf("everybody has ended, and %s has grown from %s: %v", s.name, w.fresh, err))
		}
		w.t.Logf("%s has %s", s.name, n)
	}
}
