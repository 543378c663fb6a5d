package examples

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// bank pays each time when it is asked to. It refuses a smaller fence than it has seen for the same key.
type bank struct {
	mu     sync.Mutex
	fences map[string]int64
	paid   map[string][]string // transfers by key
	broke  bool                // it refuses
	hang   chan struct{}       // not nil: it pays, and answers when that is closed
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.FormValue("key")
	fence, err := strconv.ParseInt(r.FormValue("fence"), 10, 64)
	b.mu.Lock()
	old := err != nil || fence < b.fences[key]
	b.fences[key] = max(b.fences[key], fence)
	if r.Method == http.MethodPost && !old && !b.broke {
		b.paid[key] = append(b.paid[key], fmt.Sprintf("transfer %d of %s cents for %s", len(b.paid[key])+1, r.FormValue("cents"), key))
	}
	paid, broke, hang := b.paid[key], b.broke, b.hang
	b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	switch {
	case old:
		http.Error(w, "a later attempt has asked", http.StatusConflict)
	case r.Method == http.MethodPost && broke:
		http.Error(w, "not now", http.StatusPaymentRequired)
	case len(paid) == 0:
		http.Error(w, "not paid", http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, paid[len(paid)-1])
	}
}

// set changes what the bank does, and tells how often it has paid for a key.
func (b *bank) set(key string, broke bool, hang chan struct{}) (paid int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broke, b.hang = broke, hang
	return len(b.paid[key])
}

// withdraw sends a request. What is there is the answer: 0 when the server was killed.
func withdraw(ctx context.Context, url, key string) (status int, text string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("10000"))
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Idempotency-Key", key)
	r.Close = true
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		return 0, err.Error()
	}
	return a.StatusCode, string(b)
}

// The handlers with idempotency keys, in Python and in Java, do the same.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	long(t)
	for _, language := range []string{"Python", "Java"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			argv := []string{"python3", "-B", "-u", "python/scenarios/idempotency.py"}
			if language == "Java" {
				buildJava(t)
				argv = []string{"java", "-XX:TieredStopAtLevel=1", "-cp", javaJar, "io.github.locksidecar.scenarios.Idempotency"}
			} else {
				needs(t, "python3", "python3")
			}
			idempotency(t, argv)
		})
	}
}

func idempotency(t *testing.T, argv []string) {
	b := &bank{fences: map[string]int64{}, paid: map[string][]string{}}
	at := httptest.NewServer(b)
	t.Cleanup(at.Close)
	one, other := pair(t)
	start := func(s *sidecar) (p *program, url string) {
		t.Helper()
		cmd := exec.CommandContext(context.Background(), argv[0], append(argv[1:], at.URL)...)
		cmd.Env = environment(s.env()...)
		p = launchCmd(t, cmd)
		return p, p.says("http://").text
	}
	p, url := start(one)
	_, url2 := start(other)
	is := func(what, url, key string, status int, text string) {
		t.Helper()
		if s, got := withdraw(t.Context(), url, key); s != status || !strings.Contains(got, text) {
			t.Errorf("%s: %d %s; want %d %s", what, s, got, status, text)
		}
	}
	const first = "transfer 1 of 10000 cents for "

	// Eight at the same time, at two processes of two sidecars: one is paid, all are told.
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { is("at the same time", []string{url, url2}[i%2], "k1", http.StatusOK, first+"k1") })
	}
	all.Wait()
	is("later", url, "k1", http.StatusOK, first+"k1")
	if n := b.set("k1", true, nil); n != 1 {
		t.Errorf("paid %d times", n)
	}

	is("refused", url, "k2", http.StatusPaymentRequired, "refused")
	b.set("", false, nil)
	is("after it was refused", url, "k2", http.StatusOK, first+"k2")
	is("no key", url, "", http.StatusBadRequest, "Idempotency-Key")

	// The process is killed when it is paid and has not heard of it. The next one asks.
	hang := make(chan struct{})
	b.set("", false, hang)
	sent := make(chan int)
	go func() {
		status, _ := withdraw(context.WithoutCancel(t.Context()), url, "k3")
		sent <- status
	}()
	eventually(t, "it is paid", func() bool { return b.set("k3", false, hang) == 1 })
	p.signal(syscall.SIGKILL)
	p.wait()
	if status := <-sent; status != 0 {
		t.Errorf("the killed one has answered %d", status)
	}
	close(hang)
	b.set("", false, nil)
	is("after it was killed", url2, "k3", http.StatusOK, first+"k3")
	if n := b.set("k3", false, nil); n != 1 {
		t.Errorf("paid %d times", n)
	}
}
