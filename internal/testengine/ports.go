package testengine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken below the range that the kernel gives to outgoing connections
// (32768 and up). So nobody takes the port of a server that is down for a
// moment, and a client that dials it then cannot be connected to itself.
const (
	firstPort = 16384
	lastPort  = 32767
)

// loopback is where all servers listen.
const loopback = "127.0.0.1"

// freePorts finds n ports on which nobody listens.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	seen := map[int]bool{}
	var lastErr error
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		p := firstPort + rand.IntN(lastPort-firstPort+1)
		if seen[p] {
			continue
		}
		seen[p] = true
		// All addresses at once: a server in a container listens on all, and so
		// may somebody else.
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", ":"+strconv.Itoa(p))
		if err != nil {
			lastErr = err
			continue
		}
		if err := ln.Close(); err != nil {
			return nil, fmt.Errorf("look for a free port: %w", err)
		}
		ports = append(ports, p)
	}
	return nil, fmt.Errorf("look for a free port: %w", lastErr)
}

// hostPort is an address on the loopback.
func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
