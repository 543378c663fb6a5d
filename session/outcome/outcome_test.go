package outcome

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

func by(id string, fence lock.Fence) By {
	return By{LockID: lock.HoldID(id), Fence: fence, Sidecar: "pod-1", Owner: lock.Owner{PID: 7, Session: "billing", Label: "t1"}}
}

func begin(t *testing.T, w Wish, found lock.Record, who By) *Attempt {
	t.Helper()
	a, err := w.Begin("r", found, who)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Who finds which record may begin, with which number, and is told what.
func TestTransitions(t *testing.T) {
	first := begin(t, Wish{}, lock.Record{}, by("a", 5))
	for name, c := range map[string]struct {
		found   lock.Record
		max     int
		fence   lock.Fence
		number  int
		state   State // of Previous
		refused error
		early   bool // refused before the lock is asked for
	}{
		"nothing":           {number: 1, fence: 6},
		"died":              {found: first.Started(), fence: 6, number: 2, state: Unknown},
		"failed":            {found: first.Ended(Failed, "no money"), fence: 6, number: 2, state: Failed},
		"succeeded":         {found: first.Ended(Succeeded, ""), fence: 6, refused: ErrAlreadyDone, early: true},
		"succeeded later":   {found: first.Ended(Succeeded, ""), fence: 4, refused: ErrAlreadyDone, early: true},
		"died, last":        {found: first.Started(), max: 1, fence: 6, refused: ErrAttemptsExhausted},
		"failed, last":      {found: first.Ended(Failed, ""), max: 1, fence: 6, refused: ErrAttemptsExhausted, early: true},
		"failed, one left":  {found: first.Ended(Failed, ""), max: 2, fence: 6, number: 2, state: Failed},
		"begun after us":    {found: first.Started(), fence: 4, refused: ErrOvertaken},
		"failed after us":   {found: first.Ended(Failed, ""), fence: 4, refused: ErrOvertaken},
		"somebody else's":   {found: lock.Record{Version: "x", Value: []byte("hello")}, fence: 6, refused: ErrForeign},
		"of another state":  {found: lock.Record{Version: "x", Value: []byte(`{"state":"DONE","attempt":1}`)}, fence: 6, refused: ErrForeign},
		"without a attempt": {found: lock.Record{Version: "x", Value: []byte(`{"state":"FAILED"}`)}, fence: 6, refused: ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			w := Wish{Keep: time.Hour, MaxAttempts: c.max}
			if err := w.Refused("r", c.found); (err != nil) != c.early || c.early && !errors.Is(err, c.refused) {
				t.Errorf("refused early: %v", err)
			}
			a, err := w.Begin("r", c.found, by("b", c.fence))
			if !errors.Is(err, c.refused) {
				t.Fatalf("%v, not %v", err, c.refused)
			}
			if c.refused != nil {
				if refused := (*RefusedError)(nil); errors.As(err, &refused) && refused.Found.By.LockID != "a" {
					t.Errorf("found %+v", refused.Found)
				}
				return
			}
			if a.Number != c.number || a.Keep() != time.Hour || a.ID() != "b" || a.Fence() != c.fence {
				t.Errorf("attempt %+v", a)
			}
			if (a.Previous != nil) != (c.state != 0) || a.Previous != nil && a.Previous.State != c.state {
				t.Errorf("previous %+v", a.Previous)
			}
		})
	}
}

// What an attempt records can be read again.
func TestRead(t *testing.T) {
	a := begin(t, Wish{}, lock.Record{}, by("a", 5))
	r := a.Ended(Failed, "exit status 3")
	r.Age = time.Minute
	got, err := Read(r)
	want := &Outcome{State: Failed, Attempt: 1, Note: "exit status 3", Age: time.Minute, By: by("a", 5)}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	if o, err := Read(lock.Record{}); o != nil || err != nil {
		t.Error(o, err)
	}
}

// The end of an attempt is written over its beginning, and over nothing else.
func TestAfter(t *testing.T) {
	a := begin(t, Wish{}, lock.Record{}, by("a", 5))
	b := begin(t, Wish{}, a.Started(), by("b", 6))
	for name, c := range map[string]struct {
		found lock.Record
		after string
		done  bool
		err   error
	}{
		"at work":           {found: a.Started(), after: "a"},
		"forgotten":         {},
		"told before":       {found: a.Ended(Succeeded, "another note"), done: true},
		"told otherwise":    {found: a.Ended(Failed, ""), err: ErrOtherwise},
		"another has begun": {found: b.Started(), err: ErrOvertaken},
		"another has ended": {found: b.Ended(Succeeded, ""), err: ErrOvertaken},
	} {
		t.Run(name, func(t *testing.T) {
			after, done, err := a.After(c.found, a.Ended(Succeeded, ""))
			if after != c.after || done != c.done || !errors.Is(err, c.err) {
				t.Errorf("%q %v %v", after, done, err)
			}
		})
	}
}

// A record fits whatever an app has chosen, and the note stays.
func TestLongRecords(t *testing.T) {
	note := strings.Repeat("\"\n", MaxNote/2)
	if err := CheckNote(note); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 128, 1024} {
		who := by("a", 5)
		who.Sidecar = strings.Repeat("s", 253)
		who.Owner.Session = strings.Repeat("\x01", min(size, 128))
		who.Owner.Label = strings.Repeat("\x01", min(size, 128))
		who.Owner.Metadata = map[string]string{"k": strings.Repeat("\x01", size)}
		r := begin(t, Wish{}, lock.Record{}, who).Ended(Failed, note)
		got, err := Read(r)
		if err != nil || got.Note != note || len(r.Value) > lock.MaxRecord {
			t.Errorf("%d: %v, %d bytes", size, err, len(r.Value))
		}
	}
}

func TestCheckNote(t *testing.T) {
	for note, good := range map[string]bool{
		"": true, "exit status 3": true, "two\r\n\tlines": true, "Grüße": true,
		strings.Repeat("x", MaxNote): true, strings.Repeat("x", MaxNote+1): false,
		"\x1b[31m": false, "a\x00b": false, "\xff": false,
	} {
		if err := CheckNote(note); (err == nil) != good {
			t.Errorf("%.20q: %v", note, err)
		}
	}
}

func TestStates(t *testing.T) {
	for _, s := range []State{Unknown, Failed, Succeeded} {
		if got, ok := ParseState(s.String()); got != s || !ok {
			t.Errorf("%s: %s", s, got)
		}
	}
	for _, name := range []string{"", "unknown", State(0).String(), State(9).String()} {
		if s, ok := ParseState(name); ok {
			t.Errorf("%q is %s", name, s)
		}
	}
}
