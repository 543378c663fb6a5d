package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"time"
)

// line is what a floor sends and gets back, twice for a pair: as long as an acquire with its grant, on average.
var line = strings.Repeat("x", 127) + "\n"

// echo sends back each line that comes to a socket, until the process ends.
func echo(ctx context.Context, socket string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			for r := bufio.NewReader(conn); ; {
				line, err := r.ReadSlice('\n')
				if err != nil {
					return
				}
				if _, err := conn.Write(line); err != nil {
					return
				}
			}
		}()
	}
}

// goFloor is what each pair takes that a bare connection makes.
func goFloor(ctx context.Context, socket string, pairs int) (figures, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return figures{}, err
	}
	defer conn.Close()
	out, in := []byte(line), make([]byte, len(line))
	return measure(pairs, func() error {
		for range 2 {
			if _, err := conn.Write(out); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, in); err != nil {
				return err
			}
		}
		return nil
	})
}

// measure makes pairs, of which the first ones only warm.
func measure(pairs int, pair func() error) (figures, error) {
	for range pairs / 2 {
		if err := pair(); err != nil {
			return figures{}, err
		}
	}
	took, before := make([]time.Duration, pairs), processorTime()
	for i := range took {
		began := time.Now()
		if err := pair(); err != nil {
			return figures{}, err
		}
		took[i] = time.Since(began)
	}
	used := processorTime() - before
	return figures{float64(median(took)) / 1e3, float64(used) / 1e3 / float64(pairs)}, nil
}
