package testengine

import (
	"context"
	"crypto/sha256"
	_ "embed" // of the library
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// fakeTimeStore is a store whose processes add to the time of day what stands in
// a file of the machine. A library of ours does it, which is loaded into them.
// (libfaketime makes a mysqld ten times slower and leaves shared memory behind
// when one is killed.)
type fakeTimeStore struct{ *mysqlStore }

var _ Clocker = (*fakeTimeStore)(nil)

//go:embed clock/clock.c
var clockSource []byte

// startFakeTime starts one server with a clock of its own.
func (f *mysqlFlavour) startFakeTime(ctx context.Context, m machine, ports []int) (Server, error) {
	env, err := ownClock(ctx, m)
	if err != nil {
		return nil, err
	}
	plain, err := f.one(ctx, m, ports)
	if err != nil {
		return nil, err
	}
	for _, n := range plain.nodes {
		argv := n.argv
		n.argv = func(ctx context.Context) ([]string, error) {
			args, err := argv(ctx)
			return append(env, args...), err
		}
	}
	return &fakeTimeStore{plain}, plain.Start(ctx)
}

// fakeTimeRedis is a Redis with a clock of its own.
type fakeTimeRedis struct{ *store }

var _ Clocker = (*fakeTimeRedis)(nil)

func startRedisFakeTime(ctx context.Context, m machine, ports []int) (Server, error) {
	env, err := ownClock(ctx, m)
	if err != nil {
		return nil, err
	}
	n := redisNode(m, "redis", ports[0], append(env, redisArgs(m, ports[0])...)...)
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	return &fakeTimeRedis{&store{m: m, kind: "one server with a clock of its own", url: "redis://" + n.Addr(), nodes: []*node{n}, ports: ports, gossip: true}}, nil
}

// ShiftClock implements Clocker.
func (s *fakeTimeRedis) ShiftClock(ctx context.Context, by time.Duration) error {
	return shiftClock(ctx, s.m, by)
}

// ownClock makes a clock on a machine, and gives the words that start a program with it.
func ownClock(ctx context.Context, m machine) ([]string, error) {
	library, err := clockLibrary(ctx)
	if err != nil {
		return nil, err
	}
	if library, err = m.bring(ctx, library); err != nil {
		return nil, err
	}
	if err := shiftClock(ctx, m, 0); err != nil {
		return nil, err
	}
	dir, err := m.sh(ctx, "pwd -P")
	if err != nil {
		return nil, err
	}
	return []string{"env", "LD_PRELOAD=" + library, "TESTENGINE_CLOCK=" + strings.TrimSpace(dir) + "/clock"}, nil
}

// clockLibrary compiles the library, once for each version of it.
func clockLibrary(ctx context.Context) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, cacheName)
	library := filepath.Join(dir, fmt.Sprintf("clock-%x.so", sha256.Sum256(clockSource)))
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for a library: %w", err)
	}
	unfinished, err := os.CreateTemp(dir, "new.*")
	if err != nil {
		return "", fmt.Errorf("make a library: %w", err)
	}
	cmd := exec.CommandContext(ctx, "gcc", "-shared", "-fPIC", "-O2", "-x", "c", "-o", unfinished.Name(), "-")
	cmd.Stdin = strings.NewReader(string(clockSource))
	out, err := cmd.CombinedOutput()
	err = errors.Join(err, unfinished.Close())
	if err == nil {
		err = os.Rename(unfinished.Name(), library)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("compile a library: %w\n%s", err, out), os.Remove(unfinished.Name()))
	}
	return library, nil
}

// ShiftClock implements Clocker.
func (s *fakeTimeStore) ShiftClock(ctx context.Context, by time.Duration) error {
	return shiftClock(ctx, s.m, by)
}

// shiftClock writes how far the clock is ahead. The file keeps its place, for it is mapped.
func shiftClock(ctx context.Context, m machine, by time.Duration) error {
	text := ""
	for _, b := range binary.NativeEndian.AppendUint64(nil, uint64(by)) {
		text += fmt.Sprintf(`\0%03o`, b)
	}
	_, err := m.sh(ctx, "printf %b "+quote(text)+" | dd of=clock bs=8 conv=notrunc 2>/dev/null")
	return err
}
