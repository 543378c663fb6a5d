package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	// gatewayTimeout is how long an app waits for the gateway.
	gatewayTimeout = 250 * time.Millisecond
	// gatewayHangs is for how long the gateway does not answer, if it does not.
	gatewayHangs = time.Second
)

// gateway pays, each time when it is asked to: it does not know that two requests are one
// withdrawal. Of ten first requests, one is paid and one is not, and neither is answered in
// time; of twenty, one is refused. It refuses a request with a smaller fence than it has seen for the
// same withdrawal: so what an app has sent before it was killed is not paid after its successor has asked.
type gateway struct {
	server *http.Server
	url    string
	over   chan struct{}

	mu      sync.Mutex
	fences  map[string]int64
	asked   map[string]bool
	paid    map[string][]int // cents, by withdrawal
	silent  int              // how often it has not answered, and
	silentY int              // of these, how often it had paid
}

func openGateway() (*gateway, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		return nil, err
	}
	g := &gateway{
		url: "http://" + l.Addr().String() + "/payments", over: make(chan struct{}),
		fences: map[string]int64{}, asked: map[string]bool{}, paid: map[string][]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /payments", g.find)
	mux.HandleFunc("POST /payments", g.pay)
	g.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(g.over)
		_ = g.server.Serve(l) // until Close
	}()
	return g, nil
}

func (g *gateway) Close() error {
	err := g.server.Close()
	<-g.over
	return err
}

// find tells the transfer of a withdrawal that was paid. Whoever asks has the last word from then on.
func (g *gateway) find(w http.ResponseWriter, r *http.Request) {
	key, fence := r.FormValue("key"), number(r.FormValue("fence"))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fences[key] = max(g.fences[key], fence)
	if len(g.paid[key]) == 0 {
		http.Error(w, "not paid", http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, transfer(key)) //nolint:gosec // no browser reads it
}

func (g *gateway) pay(w http.ResponseWriter, r *http.Request) {
	key, fence, n := r.FormValue("key"), number(r.FormValue("fence")), number(r.FormValue("n"))
	g.mu.Lock()
	first := !g.asked[key]
	g.asked[key] = true
	old := fence < g.fences[key]
	g.fences[key] = max(g.fences[key], fence)
	silent := first && !old && (n%10 == 3 || n%10 == 7)
	refused := old || first && n%20 == 5
	paid := !refused && (!silent || n%10 == 3)
	if paid {
		g.paid[key] = append(g.paid[key], cents(int(n)))
	}
	if silent {
		g.silent++
		if paid {
			g.silentY++
		}
	}
	g.mu.Unlock()
	if silent {
		select {
		case <-time.After(gatewayHangs):
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}
	if refused {
		http.Error(w, "not now", http.StatusPaymentRequired)
		return
	}
	_, _ = io.WriteString(w, transfer(key)) //nolint:gosec // no browser reads it
}

// ofGateway is what the gateway has done.
type ofGateway struct {
	paid, twice, cents int
	silent, silentY    int
}

func (g *gateway) sum() (s ofGateway) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.silent, s.silentY = g.silent, g.silentY
	for _, p := range g.paid {
		s.paid++
		if len(p) > 1 {
			s.twice++
		}
		for _, c := range p {
			s.cents += c
		}
	}
	return s
}

func transfer(key string) string { return "transfer of " + key }

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // the apps are ours
	return n
}

// errRefused: nothing was paid, that is sure.
var errRefused = errors.New("the gateway has refused")

// gatewayClient is the apps' side.
type gatewayClient struct {
	url    string
	client http.Client
}

// find asks for the transfer of a withdrawal; empty: it was not paid, and no attempt before this one pays it any more.
func (g *gatewayClient) find(ctx context.Context, key string, fence int64) (string, error) {
	return g.do(ctx, http.MethodGet, url.Values{"key": {key}, "fence": {fmt.Sprint(fence)}})
}

// pay pays. Any error but errRefused leaves open whether it was paid.
func (g *gatewayClient) pay(ctx context.Context, key string, n int, fence int64) (string, error) {
	return g.do(ctx, http.MethodPost, url.Values{"key": {key}, "fence": {fmt.Sprint(fence)}, "n": {fmt.Sprint(n)}})
}

func (g *gatewayClient) do(ctx context.Context, method string, v url.Values) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, g.url+"?"+v.Encode(), nil)
	if err != nil {
		return "", err
	}
	r, err := g.client.Do(q)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return "", err
	case r.StatusCode == http.StatusPaymentRequired:
		return "", errRefused
	case r.StatusCode == http.StatusNotFound:
		return "", nil
	case r.StatusCode != http.StatusOK:
		return "", fmt.Errorf("the gateway says %s", r.Status)
	}
	return string(text), nil
}
