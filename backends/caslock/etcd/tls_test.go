package etcd

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestTLS: etcds:// speaks TLS, and takes the server only with a certificate of the CA that
// tls-ca names.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.Etcd)
	addr, ca := tlsRoad(t, testengine.Nodes(t, s)[0].Addr())
	_, l := sidecar(t, "etcds://"+addr+"?tls-ca="+ca, time.Minute)
	release(t, l, hold(t, l, "tls"))
	for name, url := range map[string]string{
		"no CA":  "etcds://" + addr + "?timeout=1s",
		"no TLS": "etcd://" + addr + "?timeout=1s",
	} {
		if err := openAt(t, url).Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	trusting := openAt(t, "etcds://"+addr+"?tls-skip-verify=true")
	eventually(t, "tls-skip-verify: it answers", func() error { return trusting.Ping(t.Context()) })
}

// tlsRoad ends TLS in front of a server that has none, and gives its address, and a file with
// the certificate of its CA.
func tlsRoad(t *testing.T, target string) (addr, ca string) {
	t.Helper()
	known := httptest.NewTLSServer(nil) // for its certificate, which is for the loopback
	defer known.Close()
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{
		Certificates: known.TLS.Certificates, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				server, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", target)
				if err != nil {
					return
				}
				wg.Go(func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				})
				_, _ = io.Copy(client, server)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	return ln.Addr().String(), ca
}
