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
	NoNode                  Error = -101
	NoAuth                  Error = -102
	BadVersion              Error = -103
	NoChildrenForEphemerals Error = -108
	NodeExists              Error = -110
	NotEmpty                Error = -111
	sessionExpired          Error = -112
	authFailed              Error = -115
	sessionMoved            Error = -118
	// of a part of a transaction that another part made fail
	runtimeInconsistency Error = -2
)

// codes are the names of codes for people, as ZooKeeper's own client has them.
var codes = map[Error]string{
	-1: "SystemError", runtimeInconsistency: "RuntimeInconsistency", -3: "DataInconsistency", -5: "MarshallingError",
	-6: "Unimplemented", -7: "OperationTimeout", -8: "BadArguments", -100: "APIError", NoNode: "NoNode", NoAuth: "NoAuth",
	BadVersion: "BadVersion", NoChildrenForEphemerals: "NoChildrenForEphemerals", NodeExists: "NodeExists",
	NotEmpty: "NotEmpty", sessionExpired: "SessionExpired", -114: "InvalidACL", authFailed: "AuthFailed",
	sessionMoved: "SessionMoved", -119: "NotReadOnly", -125: "QuotaExceeded", -127: "ThrottledOp",
}

func (e Error) Error() string {
	if name := codes[e]; name != "" {
		return "ZooKeeper says " + name
	}
	return "ZooKeeper says error " + strconv.Itoa(int(e))
}
