// Package history is what was written down in a run, and what it proves.
//
// All processes of a run are on one machine and write the moments of one clock, that
// of its boot time. Each writes a file of its own, one record a line, each in one
// call of the kernel: nothing that was written is lost when the process is killed.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says what a record tells.
type Kind string

// The kinds of records. An app writes those up to Wrong, and who breaks things the
// others.
const (
	// Granted: an acquire has returned a hold. Call is from before the acquire, At
	// from after it, Until as for Checked; 0: the hold was over when it came.
	Granted Kind = "granted"
	// Checked: at the moment At the app looked at its hold and it was good, and good
	// until Until without further news.
	Checked Kind = "checked"
	// Downgrading: at the moment At, before the request, the app is about to share the hold. Who is killed before it
	// can tell of the answer may have shared it.
	Downgrading Kind = "downgrading"
	// Downgraded: the hold is shared. Call is At of Downgrading, At from after
	// it; Err: it failed.
	Downgraded Kind = "downgraded"
	// Leaving: as Checked, just before the release.
	Leaving Kind = "leaving"
	// Left: the release has returned. Call is from before it, At from after it.
	Left Kind = "left"
	// Detached: the hold was detached for Keep, as Handle. Call is from before the request, At
	// from after it; Err: whether it was is not known.
	Detached Kind = "detached"
	// Attaching: at the moment At, before the request, App is about to attach the hold of Chain by
	// Handle. Granted, with the same Call, follows where it has it, and Missed where there is none.
	Attaching Kind = "attaching"
	// Missed: there is no hold of Handle. Call and At are from before and after the request.
	Missed Kind = "missed"
	// Extended: Handle lives for Keep, counted from Call or later.
	Extended Kind = "extended"
	// Freeing: at the moment At, before the request, Handle is about to be released.
	Freeing Kind = "freeing"
	// Freed: it is, or there was none. Call is At of Freeing.
	Freed Kind = "freed"
	// Lost: at the moment At the app saw that the hold is lost; others are kept out
	// until Until. 0: nothing is promised.
	Lost Kind = "lost"
	// Refused: an acquire failed with Err. Only counted.
	Refused Kind = "refused"
	// Settled: all faults are over, and the app has got every lock once more.
	Settled Kind = "settled"
	// Wrong: the app was told something that cannot be, see Err.
	Wrong Kind = "wrong"

	// Killed: App gets SIGKILL at the moment At or later.
	Killed Kind = "killed"
	// Stopped: the sidecar Side is asked to end, at At or later: it releases all.
	Stopped Kind = "stopped"
	// Died: the store of the sidecar Side ends with it, at At or later.
	Died Kind = "died"
	// Forgot: the store forgets what it keeps for nobody, at At, or at some moment from Call on.
	Forgot Kind = "forgot"
	// Forced: somebody forces the release of Lock, which had Fence (0: it waited), at At or
	// later, with Grace.
	Forced Kind = "forced"
	// Fault: something else is done, see Err. Only for people.
	Fault Kind = "fault"
)

// Record is one line.
type Record struct {
	Kind     Kind          `json:"kind"`
	App      string        `json:"app,omitempty"`  // one life of an app
	Side     string        `json:"side,omitempty"` // the sidecar of the app
	Lock     string        `json:"lock,omitempty"` // names the hold
	Resource string        `json:"resource,omitempty"`
	Shared   bool          `json:"shared,omitempty"`
	Parts    []Part        `json:"parts,omitempty"`  // Granted: of several at once, in place of Resource and Fence
	Limit    int           `json:"limit,omitempty"`  // Granted: it is one of so many permits,
	Slot     int           `json:"slot,omitempty"`   // and this one of them
	Mortal   bool          `json:"mortal,omitempty"` // it may end while the app is frozen: the session has a TTL, or one of several was on a shard that is away
	Fence    int64         `json:"fence,omitempty"`
	Call     time.Duration `json:"call,omitempty"`
	At       time.Duration `json:"at"`
	Until    time.Duration `json:"until,omitempty"`
	Grace    time.Duration `json:"grace,omitempty"`
	Keep     time.Duration `json:"keep,omitempty"`   // Granted: its min_hold
	Chain    string        `json:"chain,omitempty"`  // of a hold that was detached: the Lock of its first grant
	Handle   string        `json:"handle,omitempty"` // names the handle; Granted: by which it was attached
	Reason   string        `json:"reason,omitempty"`
	Err      string        `json:"err,omitempty"`
}

// Part is one of several resources that were granted together.
type Part struct {
	Resource string `json:"resource"`
	Lock     string `json:"lock"` // names the hold in lists; of one part it is that of the grant
	Fence    int64  `json:"fence"`
}

// Now is the moment on the clock of all records.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Writer writes records. Its methods may be called by many goroutines.
type Writer struct{ f *os.File }

// Create opens a file for more records.
func Create(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // a path of our own
	if err != nil {
		return nil, fmt.Errorf("open a history: %w", err)
	}
	return &Writer{f}, nil
}

// Write writes a record. A history that cannot be written proves nothing: then the
// process ends.
func (w *Writer) Write(r Record) {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = w.f.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write the history: %v", err))
	}
}

// Close ends the file.
func (w *Writer) Close() error { return w.f.Close() }

// Read reads files that Writers have written. One that is not there is empty.
func Read(paths ...string) ([]Record, error) {
	var all []Record
	for _, path := range paths {
		f, err := os.Open(path) //nolint:gosec // a path of our own
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read a history: %w", err)
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var r Record
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
			}
			all = append(all, r)
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	return all, nil
}
