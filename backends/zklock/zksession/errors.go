package zksession

import (
	"errors"
	"strconv"
)

// The errors of a session, beside those that the server answers with.
var (
	// ErrNotSent: the request was not sent, so nothing has happened.
	ErrNotSent = errors.New("not connected to ZooKeeper")
	// ErrLost: the request was sent and the connection ended before the answer.
	// The server may have carried it out. Once another connection of the session
	// is up it will not be carried out any more: a server that has accepted the
	// session there refuses what comes in from the old connection, or has closed it.
	ErrLost = errors.New("the connection to ZooKeeper was lost")
	// ErrExpired: the server says that the session is over.
	ErrExpired = errors.New("the ZooKeeper session has expired")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the ZooKeeper session was closed")
)

// Error is an error code that the server answers with.
type Error int32

// The codes that a caller may want to tell apart.
const (
	ErrNoNode                  Error = -101
	ErrNoAuth                  Error = -102
	ErrBadVersion              Error = -103
	ErrNoChildrenForEphemerals Error = -108
	ErrNodeExists              Error = -110
	errSessionExpired          Error = -112
	errAuthFailed              Error = -115
	errSessionMoved            Error = -118
	// of a part of a transaction that another part made fail
	errRuntimeInconsistency Error = -2
)

// codes are the names of codes for people, as ZooKeeper's own client has them.
var codes = map[Error]string{
	-1: "SystemError", errRuntimeInconsistency: "RuntimeInconsistency", -3: "DataInconsistency", -5: "MarshallingError",
	-6: "Unimplemented", -7: "OperationTimeout", -8: "BadArguments", -100: "APIError", ErrNoNode: "NoNode", ErrNoAuth: "NoAuth",
	ErrBadVersion: "BadVersion", ErrNoChildrenForEphemerals: "NoChildrenForEphemerals", ErrNodeExists: "NodeExists",
	-111: "NotEmpty", errSessionExpired: "SessionExpired", -114: "InvalidACL", errAuthFailed: "AuthFailed",
	errSessionMoved: "SessionMoved", -119: "NotReadOnly", -125: "QuotaExceeded", -127: "ThrottledOp",
}

func (e Error) Error() string {
	if name := codes[e]; name != "" {
		return "ZooKeeper says " + name
	}
	return "ZooKeeper says error " + strconv.Itoa(int(e))
}
