package zksession

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"
)

// The errors of a session, beside those that the server answers with.
var (
	// ErrNotSent: the request was not sent, so nothing has happened.
	ErrNotSent = errors.New("not connected to ZooKeeper")
	// ErrLost: the connection ended before the answer, or the answer did not come
	// in time. The server may have carried it out, or may do so yet; what a Sync and
	// a read behind it find is final.
	ErrLost = errors.New("the connection to ZooKeeper was lost")
	// ErrExpired: the server says that the session is over.
	ErrExpired = errors.New("the ZooKeeper session has expired")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the ZooKeeper session was closed")
)

// Error is what the server answers with when it refuses a request.
type Error struct{ err error }

func (e Error) Error() string { return fmt.Sprintf("ZooKeeper refuses: %v", e.err) }

// The answers that a caller may want to tell apart.
var (
	ErrNoNode                  = Error{zk.ErrNoNode}
	ErrNoAuth                  = Error{zk.ErrNoAuth}
	ErrBadVersion              = Error{zk.ErrBadVersion}
	ErrNoChildrenForEphemerals = Error{zk.ErrNoChildrenForEphemerals}
	ErrNodeExists              = Error{zk.ErrNodeExists}
	ErrNotEmpty                = Error{zk.ErrNotEmpty}
)

// outcome makes an error of ours of one of the library's.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrSessionExpired):
		return ErrExpired
	case errors.Is(err, zk.ErrNoServer):
		return ErrNotSent // it never left the library's queue
	case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrClosing), errors.Is(err, zk.ErrSessionMoved):
		return ErrLost
	}
	for _, answer := range []error{
		zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
		zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrAPIError, zk.ErrUnknown, zk.ErrInvalidPath, zk.ErrBadArguments, zk.ErrInvalidFlags,
	} {
		if errors.Is(err, answer) {
			return Error{answer}
		}
	}
	if unknownCode(err) {
		return Error{err}
	}
	return fmt.Errorf("%w: %w", ErrLost, err) // a write that failed, for instance
}

// unknownCode reports whether a server has refused a request for a reason that the
// library does not know, such as a quota (-125) or too many requests (-127). Numbers
// above -100 are mistakes in the server itself, which leave the outcome open, but for
// that of a part of a transaction of which another part was refused (-2).
func unknownCode(err error) bool {
	text, unknown := strings.CutPrefix(err.Error(), "unknown error: ") // ErrCode.toError
	code, bad := strconv.Atoi(text)
	return unknown && bad == nil && (code <= -100 || code == -2)
}

// observed is an error as far as it is a failure: the answers that are part of
// how locks work are none.
func observed(err error) error {
	for _, ordinary := range []error{ErrNoNode, ErrNodeExists, ErrBadVersion} {
		if errors.Is(err, ordinary) {
			return nil
		}
	}
	return err
}
