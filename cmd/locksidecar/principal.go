package main

import (
	"errors"
	"strings"

	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/localapi/podid"
)

// principals are the values of --principal.
var principals = []string{"uid", "unit"}

// principalFlag says whose the limits are. Its number is an index of principals.
type principalFlag uint8

const byUnit principalFlag = 1

func (p *principalFlag) String() string { return principals[*p] }
func (*principalFlag) Type() string     { return "kind" }

func (p *principalFlag) Set(s string) error {
	for i, name := range principals {
		if name == s {
			*p = principalFlag(i)
			return nil
		}
	}
	return errors.New("must be " + strings.Join(principals, " or "))
}

// units are the settings by systemd unit.
func (s *serveFlags) units(o *sidecarOptions) (err error) {
	for _, list := range []struct {
		flag string
		from []string
		to   *[]string
	}{
		{"allow-unit", s.allowUnits, &o.access.Allow},
		{"admin-unit", s.adminUnits, &o.access.Admins},
	} {
		if len(list.from) > 0 && s.principal != byUnit {
			return usage("--%s means nothing without --principal unit", list.flag)
		}
		for _, unit := range list.from {
			if !podid.ValidUnit(unit) {
				return usage("--%s: %q is no name of a unit that has processes, such as web.service or user-1000.slice", list.flag, unit)
			}
			*list.to = append(*list.to, localapi.UnitPrincipal(unit))
		}
	}
	if s.principal != byUnit {
		return nil
	}
	if o.principals, err = localapi.ByUnit(); err != nil {
		return usage("--principal unit: %w", err)
	}
	return nil
}
