package session

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

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
	keyDropped  = "dropped"
	keyCycle    = "cycle"
	keyBroken   = "broken"
)

const (
	// maxLines bounds the lines that wait for a log that is not read.
	maxLines = 256
	// logFarewell bounds how long the end of Run waits for the last lines.
	logFarewell = time.Second
)

// logger never blocks: lines wait for a goroutine that writes them, and when the
// log's reader is stuck, as a blocked stderr is, lines are dropped and counted. So
// no lock and no notice of a loss hangs on it.
type logger struct {
	out hclog.Logger

	mu      sync.Mutex
	lines   []line
	dropped int
	idle    chan struct{} // not nil: there is a writer; it closes this when it ends
}

type line struct {
	level hclog.Level
	msg   string
	args  []any
}

func (l *logger) Debug(msg string, args ...any) {
	if l.out.IsDebug() {
		l.put(line{hclog.Debug, msg, args})
	}
}

func (l *logger) Info(msg string, args ...any)  { l.put(line{hclog.Info, msg, args}) }
func (l *logger) Warn(msg string, args ...any)  { l.put(line{hclog.Warn, msg, args}) }
func (l *logger) Error(msg string, args ...any) { l.put(line{hclog.Error, msg, args}) }

func (l *logger) put(n line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) >= maxLines {
		l.dropped++
		return
	}
	l.lines = append(l.lines, n)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.write()
	}
}

// write writes until there is nothing left.
func (l *logger) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lines) > 0 || l.dropped > 0 {
		lines, dropped := l.lines, l.dropped
		l.lines, l.dropped = nil, 0
		l.mu.Unlock()
		for _, n := range lines {
			l.out.Log(n.level, n.msg, n.args...)
		}
		if dropped > 0 {
			l.out.Warn("log lines were dropped: the log is not read", keyDropped, dropped)
		}
		l.mu.Lock()
	}
	close(l.idle)
	l.idle = nil
}

// flush waits until everything is written, for a while.
func (l *logger) flush() {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	if idle == nil {
		return
	}
	t := time.NewTimer(logFarewell)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}
