package testengine

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// machine is where the processes of one server run: this machine with a
// temporary folder, or a container. Paths are relative to its folder. The
// addresses of what runs there are the same inside and outside.
type machine interface {
	// start runs a program in the folder dir, which is made if it is not there;
	// its output goes to dir/log. The process outlives ctx.
	start(ctx context.Context, dir string, argv ...string) (process, error)
	// sh runs a script of plain POSIX sh in the machine's folder and returns what
	// it printed.
	sh(ctx context.Context, script string) (string, error)
	// cache is an absolute path of a folder there for what is worth keeping longer
	// than the machine; the folder may not be there.
	cache() string
	// bring makes a file of this machine readable there and returns its path there.
	bring(ctx context.Context, file string) (string, error)
	// bind is the address on which a server there has to listen.
	bind() string
	// String says where it is, as in "redis-server 7.0.15 in a container".
	String() string
	// close ends all processes and removes the folder.
	close() error
}

// process is one that a machine has started.
type process interface {
	// pid is its number as it sees it itself.
	pid() int
	// signal sends a signal. It is no error when the process has ended.
	signal(ctx context.Context, s syscall.Signal) error
	// kill ends it with SIGKILL and returns when it is gone.
	kill(ctx context.Context) error
	// alive says whether it still runs.
	alive(ctx context.Context) (bool, error)
}

// find runs a script that prints where something is on a machine, or nothing.
func find(ctx context.Context, m machine, what, script string) (string, error) {
	out, err := m.sh(ctx, script)
	if err != nil {
		return "", err
	}
	if out = strings.TrimSpace(out); out == "" {
		return "", fmt.Errorf("find %s %s: %w", what, m, exec.ErrNotFound)
	}
	return out, nil
}

// quote makes s one word of a shell script.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
