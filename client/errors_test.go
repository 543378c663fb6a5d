package client

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestWhatToDoAboutASocket: each way in which a sidecar cannot be reached has its hint.
func TestWhatToDoAboutASocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "lse")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "f")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dial := func(path string) error {
		c, err := net.Dial("unix", path)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "no"): "there is no such socket",
		socket:                   "the sidecar that made it is gone",
		file:                     "it is not a socket",
	} {
		err := explainDial(path, dial(path))
		if !errors.Is(err, ErrNoSidecar) || !strings.Contains(err.Error(), " at "+path+": "+want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for err, want := range map[error]string{
		&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", unix.EACCES)}: "this user may not connect to it",
		fs.ErrPermission: "this user may not connect to it",
		&net.OpError{Op: "dial", Net: "unix", Err: errors.New("something else")}: "something else",
	} {
		got := explainDial("p", err)
		if !errors.Is(got, ErrNoSidecar) || !strings.HasPrefix(got.Error(), fmt.Sprintf("%v at p: %s", ErrNoSidecar, want)) {
			t.Errorf("%v: %v, want %q", err, got, want)
		}
	}
}

// statusOf is an error as the sidecar writes it.
func statusOf(t *testing.T, message string, info *errdetails.ErrorInfo) *statuspb.Status {
	t.Helper()
	detail, err := anypb.New(info)
	if err != nil {
		t.Fatal(err)
	}
	return &statuspb.Status{Message: message, Details: []*anypb.Any{detail}}
}

// TestErrorsOfTheSidecar: what it says is an *Error with its sentinel.
func TestErrorsOfTheSidecar(t *testing.T) {
	for reason, sentinel := range byReason {
		err := fromStatus(statusOf(t, "words", &errdetails.ErrorInfo{Domain: "locksidecar", Reason: reason, Metadata: map[string]string{"k": "v"}}))
		var e *Error
		if !errors.Is(err, sentinel) || !errors.As(err, &e) || e.Reason != reason || e.Message != "words" || e.Metadata["k"] != "v" {
			t.Errorf("%s: %#v", reason, err)
		}
	}
	for _, st := range []*statuspb.Status{{Message: "words"}, statusOf(t, "words", &errdetails.ErrorInfo{Domain: "another", Reason: "NOT_HOLDER"})} {
		var e *Error
		if err := fromStatus(st); !errors.As(err, &e) || e.Message != "words" || e.Reason != "" || errors.Is(err, ErrNotHolder) {
			t.Errorf("of %v: %#v", st, err)
		}
	}
}

// TestStringsThatCannotBeSent are refused here, with the name of the field.
func TestStringsThatCannotBeSent(t *testing.T) {
	for v, want := range map[string]string{
		"": "", "x": "", strings.Repeat("x", 4096): "",
		strings.Repeat("x", 4097): "f is 4097 bytes long",
		"\xff":                    "f is not valid UTF-8",
	} {
		err := checkString("f", v)
		if want == "" && err == nil {
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Message != want || e.Metadata["field"] != "f" || !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%d bytes: %v, want %q", len(v), err, want)
		}
	}
}

// TestGraceLeft is what is left of it now.
func TestGraceLeft(t *testing.T) {
	now := bootTime()
	if got := (&LostError{graceEnd: now + time.Hour}).GraceLeft(); got > time.Hour || got < 59*time.Minute {
		t.Errorf("%v are left of an hour", got)
	}
	if got := (&LostError{graceEnd: now - time.Hour}).GraceLeft(); got != 0 {
		t.Errorf("%v are left of what is over", got)
	}
	if got := (&LostError{}).GraceLeft(); got != 0 {
		t.Errorf("%v are left where nothing was promised", got)
	}
}

// TestWhenSilenceEndsAHold: at its end; where that is by MaxHold the sidecar has half the
// margin more to say so, a quarter of a second at most.
func TestWhenSilenceEndsAHold(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		name                 string
		until, limit, margin time.Duration
		end, silent          time.Duration
	}{
		{"no limit", 10 * s, 0, s, 10 * s, 10 * s},
		{"a limit that is far", 10 * s, 11 * s, s, 10 * s, 10 * s},
		{"a limit before the end", 10 * s, 5 * s, s, 5 * s, 5*s + 250*ms},
		{"a small margin", 10 * s, 5 * s, 100 * ms, 5 * s, 5*s + 50*ms},
		{"the grant was counted a little later", 10 * s, 10*s + 250*ms, s, 10 * s, 10*s + 250*ms},
		{"it was counted too much later", 10 * s, 10*s + 250*ms + 1, s, 10 * s, 10 * s},
		{"a limit of a nanosecond", 10 * s, 1, s, 1, 1 + 250*ms},
	} {
		x := &Session{margin: c.margin, clock: sidecarClock{difference: time.Hour, known: true}}
		l := &Lock{session: x, until: c.until, limit: c.limit}
		if end, silent := l.end(), l.silentAt(); end != c.end+time.Hour || silent != c.silent+time.Hour {
			t.Errorf("%s: ends at %v, by silence at %v, want %v and %v", c.name, end-time.Hour, silent-time.Hour, c.end, c.silent)
		}
	}
}
