package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// What the API tells, for people.

const timeFormat = "2006-01-02 15:04:05"

// writeLocks is the table of list: one line for each holder and waiter.
func writeLocks(w io.Writer, locks []*pb.Lock) error {
	if len(locks) == 0 {
		_, err := fmt.Fprintln(w, "nothing is held or waited for")
		return err
	}
	t := newTable(w)
	row(t, "RESOURCE", "STATE", "MODE", "AGE", "PID", "UID", "SESSION", "SIDECAR", "FENCE", "LOCK ID")
	for _, l := range locks {
		for _, h := range l.GetHolders() {
			row(t, holderCells(l.GetResource(), holderState(h), h)...)
		}
		for i, h := range l.GetWaiters() {
			row(t, holderCells(l.GetResource(), "waits "+strconv.Itoa(i+1), h)...)
		}
	}
	return t.Flush()
}

func holderState(h *pb.Holder) string {
	switch {
	case h.GetParked():
		return "parked"
	case h.GetDetached():
		return "detached " + age(h.GetKeptFor().AsDuration())
	case h.GetKeptFor() != nil:
		return "kept " + age(h.GetKeptFor().AsDuration())
	case h.GetRevoked():
		return "revoked"
	}
	return "held"
}

// modeCell is a mode, and of a permit which of how many it is.
func modeCell(h *pb.Holder) string {
	switch {
	case h.Slot != nil:
		return fmt.Sprintf("%s %d of %d", h.GetMode(), h.GetSlot(), h.GetLimit())
	case h.Limit != nil:
		return fmt.Sprintf("%s of %d", h.GetMode(), h.GetLimit())
	default:
		return h.GetMode().String()
	}
}

func holderCells(resource, state string, h *pb.Holder) []string {
	pid, uid, session := pidCell(h.GetPid()), strconv.FormatUint(uint64(h.GetUid()), 10), orDash(printable(h.GetSession()))
	if h.GetPrincipal() != "" {
		uid += " in " + printable(h.GetPrincipal())
	}
	if h.GetParked() {
		pid, uid, session = "-", "-", "free on request"
	}
	return []string{
		printable(resource), state, modeCell(h), age(h.GetAge().AsDuration()), pid, uid, session,
		orDash(printable(h.GetSidecar())), fenceCell(h.GetFence()), h.GetLockId(),
	}
}

// writeLock is all that is known of one resource.
func writeLock(w io.Writer, l *pb.Lock, now time.Time) error {
	if len(l.GetHolders())+len(l.GetWaiters()) == 0 {
		_, err := fmt.Fprintf(w, "%s is free\n", printable(l.GetResource()))
		return err
	}
	t := newTable(w)
	row(t, "resource:", printable(l.GetResource()))
	row(t, "state:", lockState(l))
	for _, h := range l.GetHolders() {
		row(t)
		if h.GetParked() {
			row(t, "parked at:", orDash(printable(h.GetSidecar()))+", free on request")
			row(t, "  mode:", modeCell(h))
			row(t, "  since:", h.GetSince().AsTime().Local().Format(timeFormat)+", for "+age(h.GetAge().AsDuration()))
			row(t, "  lock id:", h.GetLockId())
			continue
		}
		if kept := h.GetKeptFor().AsDuration(); kept > 0 {
			what, why := "kept until:", "nobody has it any more"
			if h.GetDetached() {
				what, why = "detached until:", "whoever has its handle may attach it"
			}
			row(t, what, now.Add(kept).Format(timeFormat)+", for another "+age(kept)+": "+why)
			row(t, "  was of:", who(h))
		} else {
			row(t, "held by:", who(h))
		}
		row(t, "  mode:", modeCell(h))
		row(t, "  fence:", fenceCell(h.GetFence()))
		row(t, "  since:", h.GetSince().AsTime().Local().Format(timeFormat)+", for "+age(h.GetAge().AsDuration()))
		where := orDash(printable(h.GetSidecar()))
		if h.GetLeaseId() != "" { // what is kept may hang on none
			where += ", lease " + h.GetLeaseId()
		}
		row(t, "  sidecar:", where)
		if h.GetOwner() != "" {
			row(t, "  owner:", printable(h.GetOwner()))
		}
		for _, key := range sortedKeys(h.GetMetadata()) {
			row(t, "  "+printable(key)+":", printable(h.GetMetadata()[key]))
		}
		row(t, "  lock id:", h.GetLockId())
		if h.GetRevoked() {
			row(t, "  revoked:", "its release is forced; others are granted when it has let go, or its grace is over")
		}
	}
	if err := t.Flush(); err != nil || len(l.GetWaiters()) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	row(t, "QUEUE", "MODE", "AGE", "PID", "UID", "SESSION", "SIDECAR", "LOCK ID")
	for i, h := range l.GetWaiters() {
		cells := holderCells("", strconv.Itoa(i+1), h)[1:]
		row(t, slices.Delete(cells, len(cells)-2, len(cells)-1)...) // a waiter has no fence
	}
	return t.Flush()
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// who says which process it is.
func who(h *pb.Holder) string {
	s := "a process that its sidecar cannot see"
	if h.GetPid() != 0 {
		s = "pid " + pidCell(h.GetPid())
	}
	if h.GetSession() != "" {
		s = printable(h.GetSession()) + " (" + s + ")"
	}
	s += fmt.Sprintf(", uid %d, gid %d", h.GetUid(), h.GetGid())
	if h.GetPrincipal() != "" {
		s += ", " + printable(h.GetPrincipal())
	}
	return s
}

// lockState says in one phrase how a resource is locked.
func lockState(l *pb.Lock) string {
	var s string
	n := 0 // that some app has
	var kept time.Duration
	for _, h := range l.GetHolders() {
		switch {
		case h.GetKeptFor() != nil:
			kept = max(kept, h.GetKeptFor().AsDuration())
		case !h.GetParked():
			n++
		}
	}
	switch {
	case len(l.GetHolders())+len(l.GetWaiters()) == 0:
		return "free"
	case len(l.GetHolders()) == 0:
		s = "free in a moment"
	case n == 0 && kept > 0:
		s = "kept for another " + age(kept)
		if l.GetHolders()[0].GetDetached() {
			s = "detached for another " + age(kept)
		}
	case n == 0:
		s = "free on request"
	case n == 1 && kept == 0:
		s = "held " + modeCell(l.GetHolders()[0])
	default:
		s = fmt.Sprintf("held %s by %d", l.GetHolders()[0].GetMode(), n)
		if limit := l.GetHolders()[0].GetLimit(); limit > 0 {
			s += fmt.Sprintf(" of %d", limit)
		}
	}
	if n := len(l.GetWaiters()); n > 0 {
		s += fmt.Sprintf(", %d waiting", n)
	}
	return s
}

// writeWatch is one line of watch.
func writeWatch(w io.Writer, e *pb.WatchEvent, now time.Time) error {
	l := e.GetLock()
	line := now.Format("15:04:05") + "  " + printable(l.GetResource()) + "  " + lockState(l)
	if hs := l.GetHolders(); len(hs) > 0 {
		var by []string
		for _, h := range hs {
			name := who(h) + " on "
			switch {
			case h.GetParked():
				name = "parked at "
			case h.GetKeptFor() != nil:
				name = "was of " + name
			}
			by = append(by, name+orDash(printable(h.GetSidecar())))
		}
		line += ": " + strings.Join(by, "; ")
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

// writeInfo tells about the sidecar.
func writeInfo(w io.Writer, i *pb.Info, socket string) error {
	ready := "yes"
	switch {
	case i.GetDraining():
		ready = "no: it stops"
	case !i.GetReady():
		ready = "no: " + i.GetNotReadyBecause()
	}
	lease := "none"
	if i.GetLeaseId() != "" {
		lease = fmt.Sprintf("%s, TTL %s, valid for %s", i.GetLeaseId(), i.GetLeaseTtl().AsDuration(), i.GetLeaseValidFor().AsDuration().Round(100*time.Millisecond))
		if i.GetJeopardy() {
			lease += ", in jeopardy: the store does not answer"
		}
	}
	t := newTable(w)
	row(t, "sidecar:", printable(i.GetSidecar()))
	row(t, "version:", i.GetVersion())
	row(t, "socket:", socket)
	row(t, "store:", i.GetStore())
	row(t, "namespace:", orDash(printable(i.GetNamespace())))
	row(t, "ready:", ready)
	row(t, "lease:", lease)
	row(t, "sessions:", strconv.Itoa(int(i.GetSessions())))
	row(t, "holds:", strconv.Itoa(int(i.GetHolds())))
	row(t, "waiters:", strconv.Itoa(int(i.GetWaiters())))
	row(t, "parked:", strconv.Itoa(int(i.GetParked())))
	row(t, "uptime:", age(i.GetUptime().AsDuration()))
	return t.Flush()
}
