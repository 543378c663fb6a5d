package zklock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestDigest: with a user in the URL nobody else may read, change or delete what
// the sidecar has made.
func TestDigest(t *testing.T) { again(t, testDigest) }

func testDigest(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		path := "/digest-" + string(unique())
		as := func(user string) string {
			return strings.Replace(s.URL(), "zk://", "zk://"+user+"@", 1) + path + "?layout=" + layout
		}
		road, url := newRoad(t, s.URL())
		b, l := sidecar(t, strings.Replace(url, "zk://", "zk://sidecar:s%40cret@", 1)+path+"?layout="+layout, 30*time.Second)
		_, o := sidecar(t, as("sidecar:s%40cret"), 30*time.Second)
		g := hold(t, l, "r", lock.Exclusive)
		refused(t, o, "r", lock.Exclusive)

		c := stranger(t, s.URL())
		dir, _ := b.tree.lockPath("r")
		if _, err := c.Create(dir+"/_c_x-__WRIT__", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("a stranger makes a request: %v", err)
		}
		if _, _, err := c.Children(dir); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("a stranger lists the queue: %v", err)
		}
		l.driver.mu.Lock()
		node := l.driver.spots[g.ID].node
		l.driver.mu.Unlock()
		if err := errors.Join(b.WriteRecord(t.Context(), "r", "", recordOf("v1"), time.Hour), b.WriteRecord(t.Context(), "r", "v1", recordOf("v2"), time.Hour)); err != nil {
			t.Errorf("WriteRecord: %v", err)
		}
		for what, err := range map[string]error{
			"deletes":          c.Delete(node, -1),
			"writes":           second(c.Set(node, nil, -1)),
			"reads":            third(c.Get(node)),
			"reads the record": third(c.Get(b.tree.record("r"))),
			"writes the lease": second(c.Set(l.driver.leaseNode.path, nil, -1)),
		} {
			if !errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("a stranger %s a hold: %v", what, err)
			}
		}
		if err := b.DeleteRecord(t.Context(), "r", "v2"); err != nil {
			t.Errorf("DeleteRecord: %v", err)
		}
		for _, user := range []string{"sidecar:wrong", "other:s%40cret"} {
			b := openAt(t, as(user))
			_, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second})
			if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "may not") {
				t.Errorf("OpenLease as %s: %v", user, err)
			}
			_ = b.Close()
		}

		road.sever() // the next connection has the same rights
		eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
		release(t, l, g)
		release(t, o, hold(t, o, "r", lock.Exclusive))
	}
}

func second(_ *zk.Stat, err error) error          { return err }
func third(_ []byte, _ *zk.Stat, err error) error { return err }

// TestTLS: zks:// speaks TLS, and takes the server only with a certificate of
// the CA that tls-ca names.
func TestTLS(t *testing.T) { again(t, testTLS) }

func testTLS(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	cert, ca := certificate(t)
	addr := tlsRoad(t, cert, hosts(s.URL())[0])
	_, l := sidecar(t, "zks://"+addr+"?tls-ca="+ca, 30*time.Second)
	release(t, l, hold(t, l, "tls", lock.Exclusive))

	_, other := certificate(t)
	for name, url := range map[string]string{
		"another CA": "zks://" + addr + "?tls-ca=" + other,
		"no CA":      "zks://" + addr,
		"no TLS":     "zk://" + addr,
	} {
		b := openAt(t, url)
		if err := b.Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		_ = b.Close()
	}
	b := openAt(t, "zks://"+addr+"?tls-skip-verify=true")
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
