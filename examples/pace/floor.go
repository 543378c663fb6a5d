package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
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

// goHand is a pair without a client: the two requests as text, and of what comes back only the lock's id is read.
func goHand(ctx context.Context, socket string, pairs int) (figures, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return figures{}, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	ask := func(word, format string, args ...any) ([]byte, error) {
		if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
			return nil, err
		}
		for { // news may come before the answer
			answer, err := in.ReadSlice('\n')
			if err != nil || bytes.Contains(answer, []byte(word)) {
				return answer, err
			}
		}
	}
	if _, err := ask("opened", `{"requestId":"0","open":{"name":"pace"}}`); err != nil {
		return figures{}, err
	}
	number := 0
	return measure(pairs, func() error {
		number += 2
		granted, err := ask("granted", `{"requestId":"%d","acquire":{"resource":"pace","owner":"hand"}}`, number)
		if err != nil {
			return err
		}
		_, rest, ok := bytes.Cut(granted, []byte(`"lockId":"`))
		id, _, _ := bytes.Cut(rest, []byte(`"`))
		if !ok {
			return fmt.Errorf("no grant: %s", granted)
		}
		_, err = ask("released", `{"requestId":"%d","release":{"lockId":"%s"}}`, number+1, id)
		return err
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
