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

// clock is a file of a machine. Processes add to the time of day what stands in
// it: a library of ours does it, which is loaded into them. (libfaketime makes a
// mysqld ten times slower and leaves shared memory behind when one is killed.)
type clock struct{ m machine }

// ShiftClock implements Clocker. The file keeps its place, for it is mapped.
func (c clock) ShiftClock(ctx context.Context, by time.Duration) error {
	text := ""
	for _, b := range binary.NativeEndian.AppendUint64(nil, uint64(by)) {
		text += fmt.Sprintf(`\0%03o`, b)
	}
	_, err := c.m.sh(ctx, "printf %b "+quote(text)+" | dd of=clock bs=8 conv=notrunc 2>/dev/null")
	return err
}

// mysqlFakeTime and redisFakeTime are servers with a clock of their own.
type (
	mysqlFakeTime struct {
		*mysqlStore
		clock
	}
	redisFakeTime struct {
		*store
		clock
	}
)

var (
	_ Clocker = mysqlFakeTime{}
	_ Clocker = redisFakeTime{}
)

//go:embed clock/clock.c
var clockSource []byte

// startFakeTime starts one server with a clock of its own.
func (f *mysqlFlavour) startFakeTime(ctx context.Context, m machine, ports []int) (Server, error) {
	s, err := f.one(ctx, m, ports)
	if err != nil {
		return nil, err
	}
	c, err := s.withClock(ctx)
	if err != nil {
		return nil, err
	}
	return mysqlFakeTime{s, c}, s.Start(ctx)
}

func startRedisFakeTime(ctx context.Context, m machine, ports []int) (Server, error) {
	s := oneRedis(m, ports)
	c, err := s.withClock(ctx)
	if err != nil {
		return nil, err
	}
	return redisFakeTime{s, c}, s.Start(ctx)
}

// withClock gives a store that was not started yet a clock of its own.
func (s *store) withClock(ctx context.Context) (clock, error) {
	c := clock{s.m}
	library, err := clockLibrary(ctx)
	if err != nil {
		return c, err
	}
	if library, err = s.m.bring(ctx, library); err != nil {
		return c, err
	}
	if err := c.ShiftClock(ctx, 0); err != nil {
		return c, err
	}
	dir, err := s.m.sh(ctx, "pwd -P")
	if err != nil {
		return c, err
	}
	env := []string{"env", "LD_PRELOAD=" + library, "TESTENGINE_CLOCK=" + strings.TrimSpace(dir) + "/clock"}
	for _, n := range s.nodes {
		argv := n.argv
		n.argv = func(ctx context.Context) ([]string, error) {
			args, err := argv(ctx)
			return append(env, args...), err
		}
	}
	return c, nil
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
