package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/config"
)

// defaultPath is where programs are where nobody says: execvp(3) takes it.
const defaultPath = "/bin:/usr/bin"

// findProgram gives the path of CMD, before the lock is asked for, and its
// arguments: a script without a first line that says who reads it is for sh, as in
// execvp(3).
func findProgram(argv []string) (path string, all []string, err error) {
	name := argv[0]
	path, err = lookPath(name)
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", nil, &exitError{code: exitNotFound, err: fmt.Errorf("there is no program %q", name)}
	case err != nil:
		return "", nil, &exitError{code: exitCannotExec, err: fmt.Errorf("cannot execute %q: %w", name, err)}
	case isText(path):
		return "/bin/sh", append([]string{"sh", path}, argv[1:]...), nil
	}
	return path, argv, nil
}

func lookPath(name string) (string, error) {
	if _, ok := os.LookupEnv("PATH"); ok || strings.Contains(name, "/") {
		path, err := exec.LookPath(name)
		if errors.Is(err, exec.ErrDot) { // PATH names the directory where we are, and it is the user's
			err = nil
		}
		return path, err
	}
	for _, dir := range filepath.SplitList(defaultPath) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// isText tells a script that does not say for whom it is.
func isText(path string) bool {
	f, err := os.Open(path) //nolint:gosec // the user names it
	if err != nil {
		return false // perhaps it can be executed all the same
	}
	defer f.Close()
	head := make([]byte, 256)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return false
	}
	head = head[:n]
	return !slices.Contains(head, 0) && !strings.HasPrefix(string(head), "#!") && !strings.HasPrefix(string(head), "\x7fELF") && unix.Access(path, unix.X_OK) == nil
}

// Variables that are there only sometimes.
const (
	// guardVariable: only where the store has guards.
	guardVariable = "LOCKSIDECAR_GUARD"
	// slotVariable: only with --limit.
	slotVariable = "LOCKSIDECAR_SLOT"
	// These are for a CMD that is run once.
	attemptVariable      = "LOCKSIDECAR_ATTEMPT"
	previousVariable     = "LOCKSIDECAR_PREVIOUS"
	previousNoteVariable = "LOCKSIDECAR_PREVIOUS_NOTE"
	outcomeGuardVariable = "LOCKSIDECAR_OUTCOME_GUARD"
	// idsVariable has the lock ids of all runs that one is inside, the innermost last.
	idsVariable = "LOCKSIDECAR_LOCK_IDS"
)

// heldByAncestors are the lock ids under which this process itself runs.
func heldByAncestors() []string {
	if ids := os.Getenv(idsVariable); ids != "" {
		return strings.Split(ids, ",")
	}
	return nil
}

// environment is ours and what CMD must know, without what it must not.
func environment(l *client.Lock, socket string) []string {
	parts := l.Parts
	if len(parts) == 0 {
		parts = []client.Part{{Resource: l.Resource, ID: l.ID, Fence: l.Fence, Guard: l.Guard}}
	}
	var names, fences, guards []string
	ids := heldByAncestors()
	for _, p := range parts {
		names, fences, ids = append(names, p.Resource), append(fences, fmt.Sprint(p.Fence)), append(ids, p.ID)
		if p.Guard != nil {
			guards = append(guards, guardStatement(p.Guard))
		}
	}
	own := []string{
		"LOCKSIDECAR_FENCE=" + strings.Join(fences, "\n"),
		"LOCKSIDECAR_RESOURCE=" + strings.Join(names, "\n"),
		"LOCKSIDECAR_LOCK_ID=" + l.ID,
		idsVariable + "=" + strings.Join(ids, ","),
		client.SocketEnv + "=" + socket,
	}
	drop := []string{guardVariable, slotVariable, attemptVariable, previousVariable, previousNoteVariable, outcomeGuardVariable}
	for _, flag := range []string{"store", "store-file", "store-password-file", "handle"} {
		drop = append(drop, config.EnvName(flag))
	}
	if guards != nil {
		own = append(own, guardVariable+"="+strings.Join(guards, "\n"))
	}
	if l.Mode() == client.Permit {
		own = append(own, slotVariable+"="+strconv.Itoa(l.Slot))
	}
	if l.Attempt > 0 {
		own = append(own, attemptVariable+"="+strconv.Itoa(l.Attempt))
	}
	if p := l.Previous; p != nil {
		own = append(own, previousVariable+"="+p.GetState().String(), previousNoteVariable+"="+p.GetNote())
	}
	if l.OutcomeGuard != nil {
		own = append(own, outcomeGuardVariable+"="+guardStatement(l.OutcomeGuard))
	}
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !hasName(own, name) && !slices.Contains(drop, name) {
			env = append(env, e)
		}
	}
	return append(env, own...)
}

// guardStatement is a guard with its arguments in place, for programs that have
// nothing but a database's command line.
func guardStatement(g *client.Guard) string {
	if g == nil {
		return ""
	}
	var s strings.Builder
	args := g.Args
	for part := range strings.SplitAfterSeq(g.SQL, "?") {
		if before, ok := strings.CutSuffix(part, "?"); ok && len(args) > 0 {
			part = before + "'" + strings.ReplaceAll(args[0], "'", "''") + "'"
			args = args[1:]
		}
		s.WriteString(part)
	}
	return s.String()
}

func hasName(env []string, name string) bool {
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return true
		}
	}
	return false
}
