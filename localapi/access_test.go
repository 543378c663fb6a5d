package localapi

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/session"
)

func TestAccess(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socketDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for name, x := range map[string]struct {
		access       Access
		uid, gid     uint32
		allow, admin bool
	}{
		"nothing said":        {Access{}, 1000, 1000, true, false},
		"allowed uid":         {Access{AllowUIDs: []uint32{1000}}, 1000, 1, true, false},
		"another uid":         {Access{AllowUIDs: []uint32{1000}}, 1001, 1000, false, false},
		"allowed gid":         {Access{AllowGIDs: []uint32{50}}, 1000, 50, true, false},
		"another gid":         {Access{AllowGIDs: []uint32{50}}, 1000, 51, false, false},
		"uid or gid":          {Access{AllowUIDs: []uint32{1}, AllowGIDs: []uint32{50}}, 1, 51, true, false},
		"the sidecar's own":   {Access{AllowUIDs: []uint32{1}}, 77, 51, true, true},
		"root":                {Access{AllowUIDs: []uint32{1}}, 0, 51, true, true},
		"a named admin":       {Access{AllowUIDs: []uint32{1}, AdminUIDs: []uint32{9}}, 9, 51, true, true},
		"root is not named":   {Access{AllowUIDs: []uint32{1}, AdminUIDs: []uint32{9}}, 0, 51, false, false},
		"an empty admin list": {Access{AdminUIDs: []uint32{}}, 0, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := x.access.withDefaults(77)
			ok, err := a.allows(session.Peer{UID: x.uid, GID: x.gid}, c)
			if err != nil || ok != x.allow || a.admin(session.Peer{UID: x.uid}) != x.admin {
				t.Errorf("allowed %v (%v), admin %v", ok, err, a.admin(session.Peer{UID: x.uid}))
			}
		})
	}
}

// TestAccessByAnotherGroup: a supplementary group of the peer counts as much as its first.
func TestAccessByAnotherGroup(t *testing.T) {
	mine, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	const group = 54321
	if err := syscall.Setgroups([]int{54320, group}); err != nil {
		t.Skip("only root may choose its groups: ", err)
	}
	defer func() {
		if err := syscall.Setgroups(mine); err != nil {
			t.Error(err)
		}
	}()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socketDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for gid, want := range map[uint32]bool{group: true, group - 1: true, group + 1: false} {
		a := Access{AllowGIDs: []uint32{gid}}.withDefaults(77)
		if ok, err := a.allows(session.Peer{UID: 1000, GID: 1000}, c); err != nil || ok != want {
			t.Errorf("group %d: allowed %v, %v", gid, ok, err)
		}
	}
}
