package testengine

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// certificate is what a server shows its clients, all as PEM.
type certificate struct{ ca, cert, key []byte }

// newCertificate makes a certificate for a server on the loopback and an
// authority that vouches for it and for nobody else.
func newCertificate() (*certificate, error) {
	var keys [2]*ecdsa.PrivateKey
	var templates [2]*x509.Certificate
	for i, name := range []string{"authority", "server"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make a key: %w", err)
		}
		keys[i] = key
		templates[i] = &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 1), Subject: pkix.Name{CommonName: "locksidecar test " + name},
			NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour), // clocks are shifted
		}
	}
	authority, server := templates[0], templates[1]
	authority.IsCA, authority.BasicConstraintsValid, authority.KeyUsage = true, true, x509.KeyUsageCertSign
	server.DNSNames, server.IPAddresses = []string{"localhost"}, []net.IP{net.ParseIP(loopback)}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

	c := &certificate{}
	for i, to := range []*[]byte{&c.ca, &c.cert} {
		der, err := x509.CreateCertificate(rand.Reader, templates[i], authority, &keys[i].PublicKey, keys[0])
		if err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		*to = asPEM("CERTIFICATE", der)
	}
	der, err := x509.MarshalPKCS8PrivateKey(keys[1])
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	c.key = asPEM("PRIVATE KEY", der)
	return c, nil
}

func asPEM(kind string, der []byte) []byte {
	var b bytes.Buffer
	_ = pem.Encode(&b, &pem.Block{Type: kind, Bytes: der}) // a buffer takes it all
	return b.Bytes()
}
