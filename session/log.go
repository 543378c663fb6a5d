package session

// Keys of log lines.
const (
	keyError    = "error"
	keyLease    = "lease"
	keySession  = "session"
	keyPID      = "pid"
	keyResource = "resource"
	keyLockID   = "lock_id"
	keyReason   = "reason"
	keyHolds    = "holds"
	keyGrace    = "grace"
	keyTTL      = "ttl"
	keyValidFor = "valid_for"
)
