package lock

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRecordCheck(t *testing.T) {
	good := Record{Version: "v", Value: make([]byte, MaxRecord)}
	for _, keep := range []time.Duration{MinKeep, time.Hour, MaxKeep} {
		if err := good.Check(keep); err != nil {
			t.Errorf("for %s: %v", keep, err)
		}
	}
	if err := (Record{Version: strings.Repeat("~", MaxRecordVersion)}).Check(time.Hour); err != nil {
		t.Error(err)
	}
	for field, bad := range map[string]struct {
		records []Record
		keep    time.Duration
	}{
		"version": {[]Record{{}, {Version: strings.Repeat("v", MaxRecordVersion+1)}, {Version: "a b"}, {Version: "\x7f"}, {Version: "é"}}, time.Hour},
		"value":   {[]Record{{Version: "v", Value: make([]byte, MaxRecord+1)}}, time.Hour},
		"keep":    {[]Record{good}, MaxKeep + 1},
	} {
		for _, r := range bad.records {
			var invalid *InvalidError
			if err := r.Check(bad.keep); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("version %q: got %v, want an InvalidError about %s", r.Version, err, field)
			}
		}
	}
	if err := good.Check(MinKeep - 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("a short keep: %v", err)
	}
}

// front stands in front of a Backend.
type front struct{ Backend }

func (f front) Unwrap() Backend { return f.Backend }

type keeping struct {
	Backend
	Records
}

func TestRecordsOf(t *testing.T) {
	r := keeping{}
	if got, ok := RecordsOf(front{front{r}}); !ok || got != Records(r) {
		t.Errorf("behind two: got %v, %v", got, ok)
	}
	for _, none := range []Backend{nil, front{}, front{struct{ Backend }{}}} {
		if got, ok := RecordsOf(none); ok {
			t.Errorf("%T gives the records %v", none, got)
		}
	}
}

type handling struct {
	Backend
	Handles
}

func TestHandlesOf(t *testing.T) {
	h := handling{}
	if got, ok := HandlesOf(front{h}); !ok || got != Handles(h) {
		t.Errorf("behind one: got %v, %v", got, ok)
	}
	if got, ok := HandlesOf(front{}); ok {
		t.Errorf("nothing gives %v", got)
	}
}

func TestCheckDetach(t *testing.T) {
	for d, good := range map[time.Duration]bool{0: false, MinDetach - 1: false, MinDetach: true, MaxDetach: true, MaxDetach + 1: false} {
		if err := CheckDetach(d); (err == nil) != good || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", d, err)
		}
	}
}

func TestSecret(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if a == b || a.Key() == b.Key() || len(a.Key()) != 64 {
		t.Errorf("%s of %s, %s of %s", a.Key(), a, b.Key(), b)
	}
}
