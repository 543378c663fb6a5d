package redislock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// rediss:// speaks TLS, and takes the server only with a certificate of the CA
// that tls-ca names.
func TestTLS(t *testing.T) { again(t, testTLS) }

func testTLS(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	cert, ca := certificate(t)
	addr := tlsRoad(t, cert, strings.TrimPrefix(s.URL(), "redis://"))
	_, l := sidecar(t, "rediss://"+addr+noGrace+"&tls-ca="+ca, 30*time.Second)
	g := hold(t, l, "tls")
	if err := l.Release(t.Context(), "tls", g.ID); err != nil {
		t.Error(err)
	}

	_, other := certificate(t)
	for name, url := range map[string]string{
		"another CA": "rediss://" + addr + "?tls-ca=" + other,
		"no CA":      "rediss://" + addr,
		"no TLS":     "redis://" + addr,
	} {
		b := openAt(t, url)
		if err := b.Ping(t.Context()); err == nil {
			t.Errorf("%s: the server was taken", name)
		}
		_ = b.Close()
	}
	b := openAt(t, "rediss://"+addr+"?tls-skip-verify=true")
	defer func() { _ = b.Close() }()
	if err := b.Ping(t.Context()); err != nil {
		t.Errorf("tls-skip-verify: %v", err)
	}
}

// certificate makes a certificate for the loopback that is its own CA, and a
// file with it.
func certificate(t testing.TB) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// tlsRoad ends TLS in front of a server that has none.
func tlsRoad(t testing.TB, cert tls.Certificate, target string) string {
	t.Helper()
	ln, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
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
				server, err := net.Dial("tcp4", target)
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
	return ln.Addr().String()
}
