package localapi

import (
	"net"
	"strings"

	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/localapi/podid"
)

// Principals names who has made a connection, by what the kernel tells and not by what the
// client says. It does not block. Whom it gives an error for may do nothing.
type Principals func(*net.UnixConn) (name string, err error)

// UnitPrincipal is the name of a systemd unit as a principal.
func UnitPrincipal(unit string) string { return "unit:" + unit }

// UnitOf is the unit of such a name.
func UnitOf(principal string) string { return strings.TrimPrefix(principal, UnitPrincipal("")) }

// ByUnit names who has connected by the systemd unit that the process is in; of what a user has
// started, by login or by a systemd of its own, by the slice of that user. It fails where the kernel
// cannot tell for sure, see peercred.FindCgroups.
func ByUnit() (Principals, error) {
	cgroups, err := peercred.FindCgroups()
	if err != nil {
		return nil, err
	}
	return func(c *net.UnixConn) (string, error) {
		path, err := cgroups.Of(c)
		if err != nil {
			return "", err
		}
		unit, err := podid.Unit(path)
		if err != nil {
			return "", err
		}
		return UnitPrincipal(unit), nil
	}, nil
}
