package localapi

import (
	"net"
	"slices"

	"github.com/locksidecar/locksidecar/localapi/peercred"
)

// Access says who may use the socket. The first guard is the file system: only
// who can reach the socket file and write to it can connect. Where AllowUIDs and
// AllowGIDs are both empty, that is the only one.
type Access struct {
	AllowUIDs []uint32 // these users
	AllowGIDs []uint32 // and members of these groups
	// AdminUIDs may take locks from others (ForceRelease). Default: root and the
	// sidecar's own user. Admins and the sidecar's own user may always connect.
	AdminUIDs []uint32

	self uint32
}

func (a Access) withDefaults(self uint32) Access {
	a.self = self
	if a.AdminUIDs == nil {
		a.AdminUIDs = []uint32{0, self}
	}
	return a
}

// allows tells whether the peer at the other end of c may use the API.
func (a Access) allows(p *peercred.Peer, c *net.UnixConn) (bool, error) {
	switch {
	case len(a.AllowUIDs) == 0 && len(a.AllowGIDs) == 0,
		p.UID == a.self, a.admin(p.UID),
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

func (a Access) admin(uid uint32) bool { return slices.Contains(a.AdminUIDs, uid) }
