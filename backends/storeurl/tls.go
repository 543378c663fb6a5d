package storeurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"sync/atomic"
)

// TLS is how connections to a store are encrypted. The files that the options name are read
// again for each connection. A nil TLS is none.
type TLS struct {
	options *tls.Config // without what stands in files
	ca      string      // file of the certificates to trust; empty: the system's
	pair    [2]string   // files of the certificate of the client and its key; empty: none
	last    atomic.Pointer[tls.Config]
}

// TLS reads tls, tls-ca, tls-cert, tls-key, tls-server-name and
// tls-skip-verify. Without TLS it is nil. byDefault is what tls is when it is
// not given.
func (o *Options) TLS(byDefault bool) *TLS {
	use := o.Bool("tls", byDefault)
	t := &TLS{ca: o.String("tls-ca", ""), pair: [2]string{o.String("tls-cert", ""), o.String("tls-key", "")}}
	t.options = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         o.String("tls-server-name", ""),
		InsecureSkipVerify: o.Bool("tls-skip-verify", false), //nolint:gosec // the user asks for it by name
	}
	if !use {
		if t.ca != "" || t.pair[0] != "" || t.pair[1] != "" || t.options.ServerName != "" || t.options.InsecureSkipVerify {
			o.Refuse("tls-…", "needs TLS: add tls=true")
		}
		return nil
	}
	if (t.pair[0] == "") != (t.pair[1] == "") {
		o.Refuse("tls-cert", "and tls-key go together")
		return nil
	}
	c, option, err := t.read()
	if err != nil {
		o.Refuse(option, err.Error())
		return nil
	}
	t.last.Store(c)
	return t
}

// read reads the files. With an error it also gives the option that is to blame.
func (t *TLS) read() (c *tls.Config, option string, err error) {
	c = t.options.Clone()
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, "tls-ca", err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, "tls-ca", errors.New("has no certificate in it")
		}
	}
	if t.pair[0] != "" {
		pair, err := tls.LoadX509KeyPair(t.pair[0], t.pair[1])
		if err != nil {
			return nil, "tls-cert", err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, "", nil
}

// Config is for one connection; nil: without TLS. While the files cannot be used, such as in
// the middle of a change, they count as they were.
func (t *TLS) Config() *tls.Config {
	if t == nil {
		return nil
	}
	if c, _, err := t.read(); err == nil {
		t.last.Store(c)
	}
	return t.last.Load().Clone()
}

// To is Config for a connection to a host.
func (t *TLS) To(host string) *tls.Config {
	c := t.Config()
	if c != nil && c.ServerName == "" {
		c.ServerName = host
	}
	return c
}

// TrustAnybody leaves the server's certificate unchecked, unless the URL says whom to trust.
func (t *TLS) TrustAnybody() {
	if t != nil && t.ca == "" {
		t.options.InsecureSkipVerify = true
		t.last.Load().InsecureSkipVerify = true
	}
}
