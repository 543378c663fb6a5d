package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                                    "<1ms",
		900 * time.Microsecond:                          "<1ms",
		12 * time.Millisecond:                           "12ms",
		1540 * time.Millisecond:                         "1.5s",
		9999 * time.Millisecond:                         "9.9s",
		59*time.Second + 900*time.Millisecond:           "59s",
		time.Minute:                                     "1m",
		time.Minute + 12*time.Second:                    "1m12s",
		2*time.Hour + 3*time.Minute + time.Second:       "2h3m",
		50 * time.Hour:                                  "2d2h",
		48*time.Hour + 59*time.Minute:                   "2d",
		400*24*time.Hour + 23*time.Hour + 1*time.Second: "400d23h",
	} {
		if got := age(d); got != want {
			t.Errorf("age(%s) = %s, want %s", d, got, want)
		}
	}
}

// locksForPeople are all the shapes that there are.
func locksForPeople() []*pb.Lock {
	holder := func(id string, mode pb.Mode, fence int64, age time.Duration, pid int32, session string) *pb.Holder {
		return &pb.Holder{
			LockId: strings.Repeat(id, 32), Mode: mode, Fence: fence, Age: durationpb.New(age), Pid: pid, Uid: 1000, Gid: 100,
			Since:   timestamppb.New(time.Date(2026, 11, 21, 8, 30, 0, 0, time.Local)),
			Sidecar: "pod-7", LeaseId: strings.Repeat("f", 32), Session: session,
		}
	}
	one := holder("1", pb.Mode_EXCLUSIVE, 1795223651907272, 72*time.Second, 4321, "backup.sh")
	one.Owner, one.Metadata = "worker 3", map[string]string{"team": "billing", "build": "17"}
	one.Revoked = true
	parked := func(mode pb.Mode) *pb.Holder {
		return &pb.Holder{
			LockId: strings.Repeat("6", 32), Mode: mode, Fence: 8, Age: durationpb.New(time.Second), Sidecar: "pod-7", Parked: true,
			Since: timestamppb.New(time.Date(2026, 11, 21, 8, 30, 0, 0, time.Local)),
		}
	}
	return []*pb.Lock{
		{
			Resource: "orders/42", Holders: []*pb.Holder{one},
			Waiters: []*pb.Holder{holder("2", pb.Mode_EXCLUSIVE, 0, 3*time.Second, 0, ""), holder("3", pb.Mode_SHARED, 0, 20*time.Millisecond, 99, "reader\x1b[2J")},
		},
		{
			Resource: "conf\u202eig", // would turn the rest of the line around
			Holders:  []*pb.Holder{holder("4", pb.Mode_SHARED, 7, time.Hour, 1, "a"), holder("5", pb.Mode_SHARED, 7, time.Minute, 2, "b")},
		},
		{Resource: "parked", Holders: []*pb.Holder{parked(pb.Mode_EXCLUSIVE)}},
		{Resource: "shared", Holders: []*pb.Holder{parked(pb.Mode_SHARED), holder("7", pb.Mode_SHARED, 9, time.Second, 1, "a")}},
	}
}

func TestTables(t *testing.T) {
	locks := locksForPeople()
	now := time.Date(2026, 11, 21, 8, 31, 12, 0, time.Local)
	kept := &pb.Lock{Resource: "report", Holders: []*pb.Holder{{
		LockId: strings.Repeat("8", 32), Mode: pb.Mode_EXCLUSIVE, Fence: 9, Age: durationpb.New(10 * time.Second), Pid: 4321, Uid: 1000,
		Since: timestamppb.New(now.Add(-10 * time.Second)), Sidecar: "pod-7", Session: "report.sh",
		KeptFor: durationpb.New(20 * time.Second),
	}}}
	for _, c := range []struct {
		name  string
		write func(*bytes.Buffer) error
		want  string
	}{
		{"list", func(b *bytes.Buffer) error { return writeLocks(b, locks) }, `
RESOURCE      STATE    MODE       AGE    PID   UID   SESSION          SIDECAR  FENCE             LOCK ID
orders/42     revoked  EXCLUSIVE  1m12s  4321  1000  backup.sh        pod-7    1795223651907272  11111111111111111111111111111111
orders/42     waits 1  EXCLUSIVE  3s     -     1000  -                pod-7    -                 22222222222222222222222222222222
orders/42     waits 2  SHARED     20ms   99    1000  reader\x1b[2J    pod-7    -                 33333333333333333333333333333333
conf\u202eig  held     SHARED     1h     1     1000  a                pod-7    7                 44444444444444444444444444444444
conf\u202eig  held     SHARED     1m     2     1000  b                pod-7    7                 55555555555555555555555555555555
parked        parked   EXCLUSIVE  1s     -     -     free on request  pod-7    8                 66666666666666666666666666666666
shared        parked   SHARED     1s     -     -     free on request  pod-7    8                 66666666666666666666666666666666
shared        held     SHARED     1s     1     1000  a                pod-7    9                 77777777777777777777777777777777
`},
		{"list of nothing", func(b *bytes.Buffer) error { return writeLocks(b, nil) }, `
nothing is held or waited for
`},
		{"get", func(b *bytes.Buffer) error { return writeLock(b, locks[0], now) }, `
resource:  orders/42
state:     held EXCLUSIVE, 2 waiting

held by:    backup.sh (pid 4321), uid 1000, gid 100
  mode:     EXCLUSIVE
  fence:    1795223651907272
  since:    2026-11-21 08:30:00, for 1m12s
  sidecar:  pod-7, lease ffffffffffffffffffffffffffffffff
  owner:    worker 3
  build:    17
  team:     billing
  lock id:  11111111111111111111111111111111
  revoked:  its release is forced; others are granted when it has let go, or its grace is over

QUEUE  MODE       AGE   PID  UID   SESSION        SIDECAR  LOCK ID
1      EXCLUSIVE  3s    -    1000  -              pod-7    22222222222222222222222222222222
2      SHARED     20ms  99   1000  reader\x1b[2J  pod-7    33333333333333333333333333333333
`},
		{"get of what is parked", func(b *bytes.Buffer) error { return writeLock(b, locks[2], now) }, `
resource:  parked
state:     free on request

parked at:  pod-7, free on request
  mode:     EXCLUSIVE
  since:    2026-11-21 08:30:00, for 1s
  lock id:  66666666666666666666666666666666
`},
		{"list, get and watch of what is kept", func(b *bytes.Buffer) error {
			return errors.Join(writeLocks(b, []*pb.Lock{kept}), writeLock(b, kept, now), writeWatch(b, &pb.WatchEvent{Kind: pb.WatchEvent_CHANGED, Lock: kept}, now))
		}, `
RESOURCE  STATE     MODE       AGE  PID   UID   SESSION    SIDECAR  FENCE  LOCK ID
report    kept 20s  EXCLUSIVE  10s  4321  1000  report.sh  pod-7    9      88888888888888888888888888888888
resource:  report
state:     kept for another 20s

kept until:  2026-11-21 08:31:32, for another 20s: nobody has it any more
  was of:    report.sh (pid 4321), uid 1000, gid 0
  mode:      EXCLUSIVE
  fence:     9
  since:     2026-11-21 08:31:02, for 10s
  sidecar:   pod-7
  lock id:   88888888888888888888888888888888
08:31:12  report  kept for another 20s: was of report.sh (pid 4321), uid 1000, gid 0 on pod-7
`},
		{"get of nothing", func(b *bytes.Buffer) error { return writeLock(b, &pb.Lock{Resource: "a"}, now) }, `
a is free
`},
		{"watch", func(b *bytes.Buffer) error {
			now := time.Date(2026, 11, 21, 8, 31, 12, 0, time.Local)
			for _, l := range append(locks, &pb.Lock{Resource: "a"}) {
				if err := writeWatch(b, &pb.WatchEvent{Kind: pb.WatchEvent_CHANGED, Lock: l}, now); err != nil {
					return err
				}
			}
			return nil
		}, `
08:31:12  orders/42  held EXCLUSIVE, 2 waiting: backup.sh (pid 4321), uid 1000, gid 100 on pod-7
08:31:12  conf\u202eig  held SHARED by 2: a (pid 1), uid 1000, gid 100 on pod-7; b (pid 2), uid 1000, gid 100 on pod-7
08:31:12  parked  free on request: parked at pod-7
08:31:12  shared  held SHARED: parked at pod-7; a (pid 1), uid 1000, gid 100 on pod-7
08:31:12  a  free
`},
		{"info", func(b *bytes.Buffer) error {
			return writeInfo(b, &pb.Info{
				Sidecar: "pod-7", Version: "v1.2.3", Store: "redis://h", Ready: true, LeaseId: "abc", LeaseTtl: durationpb.New(10 * time.Second),
				LeaseValidFor: durationpb.New(8765 * time.Millisecond), Sessions: 1, Holds: 2, Waiters: 3, Parked: 4, Uptime: durationpb.New(time.Hour),
			}, "/run/s")
		}, `
sidecar:    pod-7
version:    v1.2.3
socket:     /run/s
store:      redis://h
namespace:  -
ready:      yes
lease:      abc, TTL 10s, valid for 8.8s
sessions:   1
holds:      2
waiters:    3
parked:     4
uptime:     1h
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := c.write(&b); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(strings.TrimPrefix(c.want, "\n"), b.String()); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// What differs from run to run.
var volatile = []struct {
	find *regexp.Regexp
	put  string
}{
	{regexp.MustCompile(`"[0-9a-f]{32}"`), `"ID"`},
	{regexp.MustCompile(`"fence": ?"[1-9]\d+"`), `"fence":"FENCE"`},
	{regexp.MustCompile(`"since": ?"[^"]+"`), `"since":"TIME"`},
	{regexp.MustCompile(`"(age|uptime|leaseValidFor)": ?"[^"]+"`), `"$1":"DURATION"`},
	{regexp.MustCompile(`"(pid|uid|gid)": ?\d+`), `"$1":0`},
	{regexp.MustCompile(`"sessionRef": "[A-Z2-7]{12}"`), `"sessionRef": "REF"`},
}

func normal(text string) string {
	for _, v := range volatile {
		text = v.find.ReplaceAllString(text, v.put)
	}
	return text
}

func TestJSON(t *testing.T) {
	side := serveProgram(t, "--name", "here")
	c := dial(t, side)
	hold(t, c, "orders/42")
	const lock = `{
  "resource": "orders/42",
  "holders": [
    {
      "lockId": "ID",
      "mode": "EXCLUSIVE",
      "fence":"FENCE",
      "since":"TIME",
      "age":"DURATION",
      "sidecar": "here",
      "leaseId": "ID",
      "pid":0,
      "uid":0,
      "gid":0,
      "session": "test",
      "owner": "",
      "metadata": {},
      "revoked": false,
      "parked": false,
      "sessionRef": "REF",
      "detached": false,
      "principal": ""
    }
  ],
  "waiters": []
}
`
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "orders/42"}, lock},
		{[]string{"get", "free"}, "{\n  \"resource\": \"free\",\n  \"holders\": [],\n  \"waiters\": []\n}\n"},
		{[]string{"list", "or"}, "{\n  \"locks\": [\n    " + strings.ReplaceAll(strings.TrimSuffix(lock, "\n"), "\n", "\n    ") + "\n  ],\n  \"nextPageToken\": \"\",\n  \"missingShards\": []\n}\n"},
		{[]string{"list", "nothing"}, "{\n  \"locks\": [],\n  \"nextPageToken\": \"\",\n  \"missingShards\": []\n}\n"},
		{[]string{"version"}, `{"version":"v0.0.0-test","goVersion":"X","platform":"linux/X"}` + "\n"},
		{[]string{"info"}, `{
  "version": "v0.0.0-test",
  "sidecar": "here",
  "store": "embedded:",
  "namespace": "",
  "ready": true,
  "notReadyBecause": "",
  "leaseId": "ID",
  "leaseTtl": "10s",
  "leaseValidFor":"DURATION",
  "jeopardy": false,
  "draining": false,
  "sessions": 1,
  "holds": 1,
  "waiters": 0,
  "uptime":"DURATION",
  "parked": 0
}
`},
	} {
		args := append(c.args, "-o", "json")
		if c.args[0] != "version" {
			args = append(args, "--socket", side.socket)
		}
		got := cli(t, args...)
		out := normal(got.out)
		out = regexp.MustCompile(`"goVersion":"[^"]+"`).ReplaceAllString(out, `"goVersion":"X"`)
		out = regexp.MustCompile(`"linux/[^"]+"`).ReplaceAllString(out, `"linux/X"`)
		if d := cmp.Diff(c.want, out); d != "" || got.code != 0 {
			t.Errorf("%v: status %d, stderr %q (-want +got)\n%s", c.args, got.code, got.err, d)
		}
	}
}

func TestWatch(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	l := hold(t, c, "orders/42")
	people := launch(t, nil, binary, "watch", "orders/", "--interval", "100ms", "--socket", side.socket)
	programs := launch(t, nil, binary, "watch", "--interval", "100ms", "-o", "json", "--socket", side.socket)
	eventually(t, "both see what is there", func() bool {
		return strings.Contains(people.out.String(), "orders/42  held EXCLUSIVE: test (pid ") && strings.Contains(programs.out.String(), "SYNCED")
	})
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both see the release", func() bool {
		return strings.Contains(people.out.String(), "orders/42  free\n") && strings.Contains(programs.out.String(), "FREE")
	})
	for _, w := range []*program{people, programs} {
		w.signal(syscall.SIGINT)
		if code := w.wait(); code != 0 {
			t.Errorf("status %d", code)
		}
	}
	var kinds []string
	for line := range strings.Lines(programs.out.String()) {
		var e struct {
			Kind string
			Lock *struct{ Resource string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		kinds = append(kinds, e.Kind)
	}
	if d := cmp.Diff([]string{"CURRENT", "SYNCED", "FREE"}, kinds); d != "" {
		t.Errorf("events (-want +got)\n%s", d)
	}
}

func TestReleaseSaysWhatToDo(t *testing.T) {
	side := serveProgram(t)
	hold(t, dial(t, side), "held")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"held"}, exitUsage, "if that is meant, add --force"},
		{[]string{"--force"}, exitUsage, "give one RESOURCE"},
		{[]string{"--force", "free"}, exitFailure, `nobody holds "free"`},
		{[]string{"--force", "held", "0123"}, exitFailure, "nobody of the id 0123 holds or waits"},
		{[]string{"--force", "--grace", "2h", "held"}, exitUsage, "must be 0s to 1m"},
		{[]string{"--force", "--grace", "-1s", "held"}, exitUsage, "must be 0s to 1m"},
		{[]string{"--force", "-o", "xml", "held"}, exitUsage, "must be table or json"},
	} {
		got := cli(t, append([]string{"release", "--socket", side.socket}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%v: status %d, stderr %q; want %d and %q", c.args, got.code, got.err, c.code, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"serve", "run", "LOCKSIDECAR_MAX_HOLDS", "Examples:"}},
		{[]string{"run", "--help"}, []string{"Exit status:", "75 ", "76 ", "125 ", "--wait duration", "(default forever)"}},
		{[]string{"serve", "--help"}, []string{"redis+cluster://", "SIGTERM", "--http-addr"}},
		{[]string{"lisst"}, []string{"did you mean list?"}},
	} {
		got := cli(t, c.args...)
		for _, want := range c.want {
			if !strings.Contains(got.out+got.err, want) {
				t.Errorf("%v lacks %q:\n%s%s", c.args, want, got.out, got.err)
			}
		}
	}
}
