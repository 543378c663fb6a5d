package stores

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// CPU implements measure.Store.
func (s *zooKeeperStore) CPU(context.Context) (float64, error) {
	if s.pid == 0 {
		return 0, nil
	}
	d, err := proc.CPU(s.pid)
	return float64(d) / float64(time.Microsecond), err
}

// Memory implements measure.Store: paths and data of all nodes. The heap of a
// Java program says little.
func (s *zooKeeperStore) Memory(ctx context.Context) (float64, error) {
	text, err := s.ask(ctx, "mntr")
	if err != nil {
		return 0, err
	}
	return zooKeeperNumber(text, "zk_approximate_data_size\t")
}

// Count implements measure.Store. The transaction id is the number of writes
// since the server became leader.
func (s *zooKeeperStore) Count(ctx context.Context) (measure.Count, error) {
	text, err := s.ask(ctx, "srvr")
	if err != nil {
		return measure.Count{}, err
	}
	received, err := zooKeeperNumber(text, "Received: ")
	if err != nil {
		return measure.Count{}, err
	}
	writes, err := zooKeeperNumber(text, "Zxid: ")
	return measure.Count{Requests: received - s.asked, Steps: writes}, err
}

const zooKeeperAskTimeout = 5 * time.Second

// ask sends one of the commands of four letters, which the server counts as
// requests.
func (s *zooKeeperStore) ask(ctx context.Context, command string) (string, error) {
	c, err := (&net.Dialer{Timeout: zooKeeperAskTimeout}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return "", fmt.Errorf("dial ZooKeeper: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(zooKeeperAskTimeout)); err != nil {
		return "", fmt.Errorf("dial ZooKeeper: %w", err)
	}
	if _, err := io.WriteString(c, command); err != nil {
		return "", fmt.Errorf("ask ZooKeeper: %w", err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return "", fmt.Errorf("ask ZooKeeper: %w", err)
	}
	s.asked++
	return string(b), nil
}

// zooKeeperNumber is what follows the name at the beginning of a line. Of an id it is
// what counts up: the lower half.
func zooKeeperNumber(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(value, 0, 64)
		if err != nil {
			return 0, fmt.Errorf("read a number of ZooKeeper: %w", err)
		}
		return float64(n & 0xffffffff), nil
	}
	return 0, fmt.Errorf("ZooKeeper does not tell %q: %s", name, text)
}
