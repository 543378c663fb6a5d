package testengine

import (
	"context"
	"encoding/binary"
	"strings"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
)

// What is put on a client's road to a server is package faultproxy's.
type (
	// Proxy is one client's road to a server.
	Proxy = faultproxy.Proxy
	// Direction is where bytes go.
	Direction = faultproxy.Direction
	// Fault is something that goes wrong on the road.
	Fault = faultproxy.Fault
)

// The directions and the faults.
const (
	ToServer     = faultproxy.ToServer
	ToClient     = faultproxy.ToClient
	Sever        = faultproxy.Sever
	Cut          = faultproxy.Cut
	HoldRequests = faultproxy.HoldRequests
	HoldReplies  = faultproxy.HoldReplies
	HoldAll      = faultproxy.HoldAll
)

// NewProxy makes a road to any TCP server.
func NewProxy(ctx context.Context, target string) (*Proxy, error) {
	return faultproxy.To(ctx, target, faultproxy.Options{})
}

// ZooKeeperFraming is that of ZooKeeper's packets: every message begins with its length and, but for the first, its
// number. An answer has that of its request.
var ZooKeeperFraming = &faultproxy.Framing{
	LengthSize: 4,
	Length:     func(head []byte) int64 { return 4 + int64(binary.BigEndian.Uint32(head)) },
	Number: func(head []byte) (uint32, bool) {
		if len(head) < 8 {
			return 0, false
		}
		return binary.BigEndian.Uint32(head[4:]), true
	},
}

// framingOf is what is known of the messages of a store, by its URL.
func framingOf(url string) *faultproxy.Framing {
	if strings.HasPrefix(url, "zk://") {
		return ZooKeeperFraming
	}
	return nil
}
