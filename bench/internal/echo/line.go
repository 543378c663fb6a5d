package echo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

func serveLines(l net.Listener) error {
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

// Lines are lines over one connection a caller: what the socket itself costs.
func (s *Server) Lines(name string) measure.Subject {
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
			pairs = append(pairs, twice(func(context.Context) error {
				if _, err := c.Write(line); err != nil {
					return fmt.Errorf("send a line: %w", err)
				}
				if _, err := r.ReadSlice('\n'); err != nil {
					return fmt.Errorf("receive a line: %w", err)
				}
				return nil
			}))
		}
		return pairs, closeAll, nil
	}}
}
