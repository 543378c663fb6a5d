package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// payloadBytes is about what an acquire with its request id, a release with its
// lock id, and their answers weigh on the wire.
const payloadBytes = 64

// echoServer sends back what it gets, in another process: the floor under anything that
// talks over a Unix socket.
type echoServer struct {
	process *proc.Process
	socket  string
}

// echoGrace is how long it may take to end.
const echoGrace = 2 * time.Second

// startEcho starts a server: this program with the words "echo SOCKET".
func startEcho(socket string) (*echoServer, error) {
	p, err := proc.Self("echo", socket)
	if err != nil {
		return nil, err
	}
	if _, err := p.Line(); err != nil {
		_ = p.Kill()
		p.Wait()
		return nil, err
	}
	return &echoServer{process: p, socket: socket}, nil
}

// Close ends the server.
func (s *echoServer) Close() error { return s.process.Stop(echoGrace) }

// serveEcho is the other process. It says when it listens and never returns well.
func serveEcho(ctx context.Context, socket string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go echoLines(c) // ends with the connection; the process ends by a signal
	}
}

func echoLines(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		if _, err := c.Write(line); err != nil {
			return
		}
	}
}

// Lines are two lines there and back over one connection a caller: what the socket
// itself costs.
func (s *echoServer) Lines(name string) measure.Subject {
	return measure.Subject{Name: name, Server: s.process.PID(), Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		var conns []net.Conn
		closeAll := func() error {
			var errs []error
			for _, c := range conns {
				errs = append(errs, c.Close())
			}
			return errors.Join(errs...)
		}
		line := append(bytes.Repeat([]byte{'x'}, payloadBytes-1), '\n')
		var pairs []measure.Pair
		for range callers {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("dial: %w", err), closeAll())
			}
			conns = append(conns, c)
			r := bufio.NewReader(c)
			pairs = append(pairs, func(context.Context) error {
				for range 2 {
					if _, err := c.Write(line); err != nil {
						return fmt.Errorf("send a line: %w", err)
					}
					if _, err := r.ReadSlice('\n'); err != nil {
						return fmt.Errorf("receive a line: %w", err)
					}
				}
				return nil
			})
		}
		return pairs, closeAll, nil
	}}
}
