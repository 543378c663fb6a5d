package localapi

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// together are those who share a quota, and others who do not. Each is NAMESPACE/ACCOUNT/POD; the namespace is
// the space.
var together = map[string]struct {
	most         [session.Levels]int
	ours, others []string
}{
	"space":           {each(1<<30, 1<<30, 3), []string{"shop/orders/a", "shop/orders/b", "shop/other/c"}, []string{"bank/orders/a", "bank/orders/b"}},
	"service account": {each(1<<30, 3, 1<<30), []string{"shop/orders/a", "shop/orders/b", "shop/orders/c"}, []string{"shop/other/a", "shop/other/b", "bank/orders/a"}},
}

// podConn makes connections of pods; an empty name is the sidecar's own container, which sees all spaces.
func podConn(t *testing.T) func(pod string) *conn {
	t.Helper()
	store := embedded.New()
	t.Cleanup(func() { _ = store.Close() })
	m, err := session.New(session.Options{Backend: store})
	if err != nil {
		t.Fatal(err)
	}
	return func(pod string) *conn {
		if pod == "" {
			return &conn{peer: &peercred.Peer{}, principal: NodePrincipal, space: m.Everybody()}
		}
		part := strings.Split(pod, "/")
		sp, err := m.In(part[0])
		if err != nil {
			t.Fatal(err)
		}
		return &conn{peer: &peercred.Peer{}, space: sp, principal: podPrincipal + part[0] + "/" + part[1] + "-" + part[2], account: part[0] + "/" + part[1]}
	}
}

// TestPlacesTogether: those of one space, or of one service account, have so many connections, and those that
// are idle make room for one another. Nobody else does, and nobody else is refused.
func TestPlacesTogether(t *testing.T) {
	for kind, x := range together {
		t.Run(kind, func(t *testing.T) {
			in := podConn(t)
			p := newPlaces(32, x.most)
			p.firstWord = 0
			admit := func(c *conn) *conn {
				t.Helper()
				evicted, err := p.admit(c)
				if err != nil {
					t.Fatal(err)
				}
				return evicted
			}
			idle := in(x.others[0])
			admit(idle)
			busy := in(x.ours[0])
			for _, c := range []*conn{busy, in(x.ours[0]), in(x.ours[1])} {
				admit(c)
				p.enter(c)
			}
			for range 2 { // though another one has an idle one, and though there is room
				var l *session.LimitError
				if _, err := p.admit(in(x.ours[2])); !errors.As(err, &l) || l.Limit != "connections of one "+kind || l.Max != 3 {
					t.Errorf("admit: %v", err)
				}
			}
			var others []*conn
			for _, name := range append(x.others, "", "", "", "", "") {
				c := in(name)
				if admit(c) != nil {
					t.Errorf("somebody made room for %q", name)
				}
				others = append(others, c)
			}
			p.leave(busy)
			if got := admit(in(x.ours[1])); got != busy {
				t.Error("not the idle one of those who have the limit makes room")
			}
			for _, c := range append(others, idle) {
				p.free(c)
			}
			for share, n := range p.shares.taken {
				if share.Kind() == kind && n != 3 {
					t.Errorf("%v: %d", share, n)
				}
			}
			if n := p.count(); n != 3 {
				t.Errorf("%d places are taken", n)
			}
		})
	}
}

// TestUnreadTogether: the same of bytes that are not read. Who has nothing unread, as a whole, gets any answer.
func TestUnreadTogether(t *testing.T) {
	for kind, x := range together {
		t.Run(kind, func(t *testing.T) {
			in := podConn(t)
			u := newUnread()
			u.most = x.most
			a, b := in(x.ours[0]), in(x.ours[1])
			for c, size := range map[*conn]int{a: 2, b: 1} {
				if err := u.take(c, size); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				var l *session.LimitError
				if err := u.take(in(x.ours[2]), 1); !errors.As(err, &l) || l.Limit != "bytes of unread answers of one "+kind || l.Max != 3 {
					t.Errorf("take: %v", err)
				}
			}
			for _, name := range append(x.others, "", "") {
				if err := u.take(in(name), 1); err != nil {
					t.Errorf("%q: %v", name, err)
				}
			}
			u.forget(a)
			if err := u.take(in(x.ours[2]), 2); err != nil {
				t.Error(err)
			}
			u.owes(b, -1)
		})
	}
	if s := New(Options{}); s.unread.most != each(32<<20, 64<<20, 128<<20) {
		t.Errorf("limits %v", s.unread.most)
	}
}

func TestShared(t *testing.T) {
	s := &shared{tally: newTally("things", each(2, 0, 3))}
	in := podConn(t)
	one, two := session.Peer{UID: 1}.Shares(nil), in("shop/orders/a").shares()
	want := func(err error, text string) {
		t.Helper()
		if fmt.Sprint(err) != text {
			t.Errorf("take: %v", err)
		}
	}
	for range 2 {
		want(s.take(one), "<nil>")
		want(s.take(two), "<nil>")
	}
	want(s.take(one), "limit reached: at most 2 things of one user")
	want(s.take(two), "limit reached: at most 2 things of one pod")
	three := in("shop/other/b").shares()
	want(s.take(three), "<nil>")
	want(s.take(three), "limit reached: at most 3 things of one space")
	s.give(two)
	want(s.take(three), "<nil>")
	for _, of := range [][]session.Share{one, one, two, three, three} {
		s.give(of)
	}
	if len(s.taken) != 0 {
		t.Errorf("left: %v", s.taken)
	}
}

// TestSharesOfStrangers: who is not known counts for nobody's limits but those of the unknown.
func TestSharesOfStrangers(t *testing.T) {
	c := podConn(t)("shop/orders/a")
	c.unknown = errors.New("not allowed")
	if of := c.shares(); len(of) != 1 || of[0].Principal().Name() != strangers {
		t.Errorf("%v", of)
	}
}
