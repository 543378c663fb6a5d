package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	traceparent = "traceparent: 00-" + traceID + "-b7ad6b7169203331-01"
)

// TestTracing asks over HTTP and over gRPC, and looks at the spans.
func TestTracing(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
	}))
	defer collector.Close()
	socket := filepath.Join(socketDir(t), "s")
	side := launch(t, []string{"OTEL_TRACES_EXPORTER=console,otlp", "OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL},
		binary, "serve", "--socket", socket)
	eventually(t, "it serves", func() bool { return strings.Contains(side.out.String(), "curl") })
	curl := launch(t, nil, "curl", "-sN", "--unix-socket", socket, "-H", traceparent, "http://locksidecar/v1/hold", "-d", `{"resource":"by/curl","wait":"1s"}`)
	eventually(t, "curl has the lock", func() bool { return strings.Contains(curl.out.String(), "granted") })
	curl.signal(syscall.SIGKILL)
	if got := cli(t, "run", "--socket", socket, "by/run", "--", "true"); got.code != 0 {
		t.Fatal(got)
	}
	side.signal(syscall.SIGTERM)
	if code := side.wait(); code != 0 {
		t.Errorf("status %d", code)
	}

	spans := map[string]int{} // name and resource
	inTrace := 0
	for line := range strings.Lines(side.err.String()) {
		if !strings.HasPrefix(line, `{"Name":"`) {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(line, `{"Name":"`), `"`)
		for _, resource := range []string{"by/curl", "by/run"} {
			if strings.Contains(line, `"`+resource+`"`) {
				spans[name+" "+resource]++
			}
		}
		if strings.Contains(line, `"TraceID":"`+traceID+`"`) {
			inTrace++
		}
	}
	for _, want := range []string{"acquire by/curl", "store acquire by/curl", "acquire by/run", "store acquire by/run", "store release by/run"} {
		if spans[want] != 1 {
			t.Errorf("%d spans of %q in %v", spans[want], want, spans)
		}
	}
	if inTrace == 0 {
		t.Error("the caller's trace was not continued")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(paths) == 0 || paths[0] != "/v1/traces" {
		t.Errorf("sent to %v", paths)
	}
}

// TestTracingOverLines: a request is in the trace that it names, or else in that of open,
// down to what is asked of the store.
func TestTracingOverLines(t *testing.T) {
	const ofOpen, ofRequest = "1af7651916cd43dd8448eb211c80319c", "2af7651916cd43dd8448eb211c80319c"
	socket := filepath.Join(socketDir(t), "s")
	side := launch(t, []string{"OTEL_TRACES_EXPORTER=console"}, binary, "serve", "--socket", socket)
	eventually(t, "it serves", func() bool { return strings.Contains(side.out.String(), "curl") })
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	ask := func(line string) (answer string) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			t.Fatal(err)
		}
		for answer == "" || strings.HasPrefix(answer, `{"requestId":"",`) { // an event
			var err error
			if answer, err = in.ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		return answer
	}
	ask(`{"requestId":"1","open":{},"traceparent":"00-` + ofOpen + `-b7ad6b7169203331-01"}`)
	for resource, own := range map[string]string{"by/open": "", "by/request": `,"traceparent":"00-` + ofRequest + `-b7ad6b7169203331-01"`} {
		_, id, _ := strings.Cut(ask(`{"requestId":"2","acquire":{"resource":"`+resource+`"}`+own+`}`), `"lockId":"`)
		id, _, _ = strings.Cut(id, `"`)
		if a := ask(`{"requestId":"3","release":{"lockId":"` + id + `"}` + own + `}`); !strings.Contains(a, "released") {
			t.Error(a)
		}
	}
	side.signal(syscall.SIGTERM)
	if code := side.wait(); code != 0 {
		t.Errorf("status %d", code)
	}
	spans := map[string]int{}
	for line := range strings.Lines(side.err.String()) {
		name, ok := strings.CutPrefix(line, `{"Name":"`)
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, `"`)
		_, trace, _ := strings.Cut(line, `"TraceID":"`)
		trace, _, _ = strings.Cut(trace, `"`)
		for _, resource := range []string{"by/open", "by/request"} {
			if strings.Contains(line, `"`+resource+`"`) {
				spans[name+" "+resource+" "+trace]++
			}
		}
	}
	for resource, trace := range map[string]string{"by/open": ofOpen, "by/request": ofRequest} {
		for _, name := range []string{"acquire", "store acquire", "store release"} {
			if want := name + " " + resource + " " + trace; spans[want] != 1 {
				t.Errorf("%d spans %q in %v", spans[want], want, spans)
			}
		}
	}
}

func TestNoTracing(t *testing.T) {
	side := serveProgram(t)
	if got := cli(t, "run", "--socket", side.socket, "a", "--", "true"); got.code != 0 {
		t.Fatal(got)
	}
	side.signal(syscall.SIGTERM)
	side.wait()
	if strings.Contains(side.err.String(), "TraceID") {
		t.Errorf("spans that nobody asked for: %s", side.err)
	}
}
