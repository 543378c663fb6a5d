package localapi

import (
	"net"
	"slices"

	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// Access says who may use the socket. The first guard is the file system: only
// who can reach the socket file and write to it can connect. Where AllowUIDs,
// AllowGIDs and Allow are all empty, that is the only one.
type Access struct {
	AllowUIDs []uint32 // these users
	AllowGIDs []uint32 // and members of these groups
	Allow     []string // and these principals, by name
	// AdminUIDs and Admins, which are names of principals, may take locks from others
	// (ForceRelease). Where both are nil: root and the sidecar's own user. Admins and
	// the sidecar's own user may always connect.
	AdminUIDs []uint32
	Admins    []string

	self uint32
}

func (a Access) withDefaults(self uint32) Access {
	a.self = self
	if a.AdminUIDs == nil && a.Admins == nil {
		a.AdminUIDs = []uint32{0, self}
	}
	return a
}

// allows tells whether the peer at the other end of c may use the API.
func (a Access) allows(p session.Peer, c *net.UnixConn) (bool, error) {
	switch {
	case len(a.AllowUIDs) == 0 && len(a.AllowGIDs) == 0 && len(a.Allow) == 0,
		p.UID == a.self, a.admin(p), named(a.Allow, p),
		slices.Contains(a.AllowUIDs, p.UID),
		slices.Contains(a.AllowGIDs, p.GID):
		return true, nil
	case len(a.AllowGIDs) == 0:
		return false, nil
	}
	groups, err := peercred.Groups(c)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(groups, func(g uint32) bool { return slices.Contains(a.AllowGIDs, g) }), nil
}

func (a Access) admin(p session.Peer) bool {
	return slices.Contains(a.AdminUIDs, p.UID) || named(a.Admins, p)
}

func named(list []string, p session.Peer) bool {
	return p.Principal != "" && slices.Contains(list, p.Principal)
}
