package localapi

import (
	"fmt"
	"net"
	"strings"
)

// http2Preface is how every HTTP/2 connection begins when the client knows
// beforehand that the server speaks it, as gRPC clients do (RFC 9113, 3.4). No
// HTTP/1.1 request begins so: PRI is reserved.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// sniffLength is how much of the preface tells the protocols apart.
const sniffLength = len("PRI * HTTP/2.0")

type protocol uint8

const (
	protocolHTTP protocol = iota + 1 // HTTP/1.1, or something that its server must refuse
	protocolGRPC
	protocolLines // JSON lines: the first byte is {
)

// sniff reads from c until it knows the protocol: one byte is enough where the
// first is no P. It returns what it read. The caller has set a read deadline.
func sniff(c net.Conn) (p protocol, read []byte, err error) {
	buf := make([]byte, sniffLength)
	n := 0
	for n < sniffLength {
		more, err := c.Read(buf[n:])
		n += more
		if n > 0 && buf[0] == '{' {
			return protocolLines, buf[:n], nil
		}
		if !strings.HasPrefix(http2Preface, string(buf[:n])) {
			return protocolHTTP, buf[:n], nil
		}
		if err != nil {
			return 0, buf[:n], fmt.Errorf("read first bytes: %w", err)
		}
	}
	return protocolGRPC, buf, nil
}
