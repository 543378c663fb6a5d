package zklock

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

func TestParseNode(t *testing.T) {
	for name, want := range map[string]*node{
		"_c_0af3-__WRIT__0000000007":                              {id: "0af3", seq: 7},
		"_c_0af3-__READ__0000000008":                              {id: "0af3", seq: 8, shared: true},
		"_c_6c2ab8cf-7ac1-4de3-a0b6-c07c4d4ec3c0-lock-0000000009": {id: "6c2ab8cf-7ac1-4de3-a0b6-c07c4d4ec3c0", seq: 9},
		"lock-0000000010":                                         {id: "lock-0000000010", seq: 10}, // without Curator's protection
		"_c_0af3-__WRIT__2147483647":                              {id: "0af3", seq: math.MaxInt32},
		"_c_0af3-__WRIT__-2147483648":                             {id: "0af3", seq: math.MinInt32},
		"_c_0af3-__WRIT__-000000001":                              {id: "0af3", seq: -1},
		"_c_0af3-lock--000000001":                                 {id: "0af3", seq: -1},
		"_c_0af3-limit.4-__WRIT__0000000011":                      {id: "0af3", seq: 11, limit: 4},
		"_c_0af3-limit.1024-__WRIT__0000000012":                   {id: "0af3", seq: 12, limit: 1024},
		"_c_0af3-limit.1025-__WRIT__0000000013":                   {id: "0af3-limit.1025", seq: 13}, // nobody of ours has made it
		"_c_0af3-limit.0-__WRIT__0000000014":                      {id: "0af3-limit.0", seq: 14},
		"_c_0af3-limit.4-__READ__0000000015":                      {id: "0af3-limit.4", seq: 15, shared: true},
		"_c_0af3-least.60000-__WRIT__0000000016":                  {id: "0af3", seq: 16, least: time.Minute},
		"_c_0af3-kept.60000-__READ__0000000017":                   {id: "0af3", seq: 17, least: time.Minute, kept: true, shared: true},
		"_c_0af3-least.1-limit.4-__WRIT__0000000018":              {id: "0af3", seq: 18, least: time.Millisecond, limit: 4},
		"_c_0af3-least.86400001-__WRIT__0000000019":               {id: "0af3-least.86400001", seq: 19}, // nobody of ours has made it
		"_c_0af3-least.0-__WRIT__0000000020":                      {id: "0af3-least.0", seq: 20},
		"_c_0af3-kept.guard-lock-0000000006":                      nil,
		"_c_0af3-guard-lock-0000000006":                           nil, // belongs to another node
		"_c_0af3-__WRIT__":                                        nil,
		"_c_0af3-__WRIT__7":                                       nil,
		"_c_0af3-__WRIT__99999999999":                             nil,
		"_c_0af3-__WRIT__0000000007x":                             nil,
		"config":                                                  nil,
		"block-0000000001x":                                       nil,
		"":                                                        nil,
		"_c_0af3-lock-0000000001-__READ__0000000002":              {id: "0af3-lock-0000000001", seq: 2, shared: true},
	} {
		got, ok := parseNode(name)
		if ok != (want != nil) {
			t.Errorf("%q: %+v, %t", name, got, ok)
			continue
		}
		if want != nil {
			want.name = name
			if diff := cmp.Diff(*want, got, cmp.AllowUnexported(node{})); diff != "" {
				t.Errorf("%q (-want +got):\n%s", name, diff)
			}
		}
	}
}

// TestQueue: who waits for whom. W is a writer, R a reader, D a writer that was
// downgraded.
func TestQueue(t *testing.T) {
	for queue, want := range map[string]struct {
		blockers []int
		holders  int
	}{
		"W":     {[]int{-1}, 1},
		"WW":    {[]int{-1, 0}, 1},
		"RRR":   {[]int{-1, -1, -1}, 3},
		"RWR":   {[]int{-1, 0, 1}, 1},
		"RRWRR": {[]int{-1, -1, 1, 2, 2}, 2},
		"WRRWR": {[]int{-1, 0, 0, 2, 3}, 1},
		"DRRWR": {[]int{-1, 0, 0, 2, 3}, 3},
		"D":     {[]int{-1}, 1},
		"DW":    {[]int{-1, 0}, 1},
		"":      {nil, 0},
		"2":     {[]int{-1}, 1},
		"2222W": {[]int{-1, 0, 1, 2, 3}, 2},
		"222":   {[]int{-1, 0, 1}, 2},
		"23":    {[]int{-1, 0}, 1},
		"2R":    {[]int{-1, 0}, 1},
	} {
		nodes := queueOf(queue)
		var got []int
		for i, n := range nodes {
			got = append(got, blocker(nodes, i, n.shared))
		}
		if diff := cmp.Diff(want.blockers, got); diff != "" {
			t.Errorf("blockers of %s (-want +got):\n%s", queue, diff)
		}
		if n := holders(nodes, len(queue) > 0 && queue[0] == 'D'); n != want.holders {
			t.Errorf("%s has %d holders, want %d", queue, n, want.holders)
		}
	}
}

// queueOf makes a queue of letters; a number stands for one of so many permits.
func queueOf(letters string) []node {
	var nodes []node
	for i, c := range letters {
		n := node{seq: int32(i), shared: c == 'R'}
		if c >= '1' && c <= '9' {
			n.limit = int(c - '0')
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// TestPermitFree: which queues leave room for one more permit.
func TestPermitFree(t *testing.T) {
	for _, tt := range []struct {
		queue string
		limit int
		want  bool
	}{
		{"", 2, true},
		{"2", 2, true},
		{"22", 2, false},
		{"2", 3, false}, // another number
		{"W", 2, false},
		{"R", 2, false},
		{"W2", 3, false},
		{"2W", 3, false},
	} {
		if got := permitFree(queueOf(tt.queue), tt.limit); got != tt.want {
			t.Errorf("one of %d permits beside %q: %t", tt.limit, tt.queue, got)
		}
	}
}

// TestCuratorSorts: the order of Curator, which sorts by what is behind the word
// that it looks for (StandardLockInternalsDriver.standardFixForSorting), is ours
// for the nodes that it sees.
func TestCuratorSorts(t *testing.T) {
	guard, own := "_c_0af3-guard-lock-0000000006", "_c_0af3-__WRIT__0000000007"
	fix := func(name, word string) string {
		for i := len(name) - len(word); i >= 0; i-- {
			if name[i:i+len(word)] == word {
				return name[i+len(word):]
			}
		}
		return name
	}
	readWrite := func(name string) string { return fix(fix(name, "__READ__"), "__WRIT__") }
	if got := fix(guard, "lock-"); got != "0000000006" {
		t.Errorf("InterProcessMutex sorts the guard by %q", got)
	}
	if got := fix(own, "lock-"); got < "9999999999" {
		t.Errorf("InterProcessMutex sorts the request by %q, before its own", got)
	}
	if got := readWrite(own); got != "0000000007" {
		t.Errorf("InterProcessReadWriteLock sorts the request by %q", got)
	}
	if got := readWrite(guard); got < "9999999999" {
		t.Errorf("InterProcessReadWriteLock sorts the guard by %q, before its own", got)
	}
	if got := readWrite(node{id: "0af3", limit: 4}.called() + "0000000008"); got != "0000000008" {
		t.Errorf("InterProcessReadWriteLock sorts a request for a permit by %q", got)
	}
	if got, want := fix(keptGuard(guard), "lock-"), fix(guard, "lock-"); got != want {
		t.Errorf("InterProcessMutex sorts the guard that is left by %q, and the guard by %q", got, want)
	}
	if got := readWrite(keptName(node{id: "0af3", shared: true, least: time.Minute}.called() + "0000000008")); got != "0000000008" {
		t.Errorf("InterProcessReadWriteLock sorts what is left of a request by %q", got)
	}
	n, _ := parseNode(own)
	if diff := cmp.Diff([]string{guard, own}, namesOf([]string{"_c_0af-__WRIT__0000000001", guard, own, "x"}, n)); diff != "" {
		t.Errorf("names of a request (-want +got):\n%s", diff)
	}
}

// TestNamesOfKept: what may be left of a request is found from its name, counts only when that is gone, and
// is told from nodes of other programs.
func TestNamesOfKept(t *testing.T) {
	id := lock.NewHoldID()
	for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(4)} {
		name := node{id: id, shared: m == lock.Shared, limit: m.Limit(), least: 1500 * time.Millisecond}.called() + "0000000008"
		n, ok := parseNode(name)
		left, also := parseNode(keptName(name))
		if !ok || !also || n.left() != left || !n.bySidecar() || !left.bySidecar() || left.least != 1500*time.Millisecond {
			t.Errorf("%s: %+v, %+v", m, n, left)
		}
		if got := parseNodes([]string{name, left.name}); len(got) != 1 || got[0] != n {
			t.Errorf("the queue of a request and its kept node: %+v", got)
		}
		other := node{id: lock.NewHoldID(), shared: m == lock.Shared, limit: m.Limit()}.called() + "0000000009"
		if got := parseNodes([]string{other, left.name}); len(got) != 2 || got[0] != left {
			t.Errorf("the queue of a kept node and a request: %+v", got)
		}
	}
}
