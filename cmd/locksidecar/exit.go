package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/supervise"
	"github.com/locksidecar/locksidecar/lock"
)

// Exit statuses. 125 to 127 are those of env(1) and docker run, 69 and 75 are
// EX_UNAVAILABLE and EX_TEMPFAIL of sysexits.h.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitUnavailable = 69
	exitNotGot      = 75
	exitLost        = 76
	exitExhausted   = 77
	exitOwnFailure  = 125 // run: anything else that is not CMD's
	exitCannotExec  = 126
	exitNotFound    = 127
	exitSignalled   = supervise.Signalled // plus the signal's number
)

// exitError is an error with its exit status.
type exitError struct {
	code int
	err  error // nil: nothing is printed
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage is an error in what the user asked for.
func usage(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// outcome tells the exit status of a command that ended with err, and the line
// to print.
func outcome(cmd *cobra.Command, err error) (code int, message string) {
	if err == nil {
		return 0, ""
	}
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		code = exit.code
		if exit.err == nil {
			return code, ""
		}
	case errors.Is(err, lock.ErrInvalid), errors.Is(err, client.ErrInvalidRequest), strings.HasPrefix(err.Error(), "unknown command"):
		code = exitUsage
	default:
		code = exitFailure
	}
	message = fit(fmt.Sprintf("%s: %v", cmd.CommandPath(), err))
	if code == exitUsage {
		message += fmt.Sprintf(" (see: %s --help)", cmd.CommandPath())
	}
	if cmd.Annotations[annotationRuns] != "" && (code == exitFailure || code == exitUsage) {
		code = exitOwnFailure // 1 and 2 could be CMD's
	}
	return code, message
}

// fit makes the text of an error fit for people, on a terminal and in a log.
func fit(text string) string { return withoutSecrets(plain(text)) }

// withoutSecrets hides what was given as an argument by mistake: the part of a URL that may
// have a password is replaced.
func withoutSecrets(text string) string {
	return regexp.MustCompile(`(://)[^\s"]*@`).ReplaceAllString(text, "${1}xxxxx@")
}

// storeAway stands before every cause for which a store cannot be used, often more than once.
const storeAway = "the store is unavailable: "

// plain says once what an error says more than once.
func plain(text string) string {
	if before, after, found := strings.Cut(text, storeAway); found {
		text = before + storeAway + strings.ReplaceAll(after, storeAway, "")
	}
	return text
}
