package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/localapi/podid"
	"github.com/locksidecar/locksidecar/session"
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

// spaces are the values of --space.
var spaces = []string{"one", "unit"}

// spaceFlag says who has names of locks for itself. Its number is an index of spaces.
type spaceFlag uint8

const ofUnit spaceFlag = 1

// wholeSpace is the SPACE of who sees all spaces.
const wholeSpace = "/"

func (p *spaceFlag) String() string { return spaces[*p] }
func (*spaceFlag) Type() string     { return "kind" }

func (p *spaceFlag) Set(s string) error {
	i := slices.Index(spaces, s)
	if i < 0 {
		return errors.New("must be " + strings.Join(spaces, " or "))
	}
	*p = spaceFlag(i) //nolint:gosec // one of two
	return nil
}

// spaceOf says which space each unit has; nil: all have the same.
func (s *serveFlags) spaceOf() (func(principal string) string, error) {
	switch {
	case s.space != ofUnit && len(s.spacesOf) > 0:
		return nil, usage("--space-of means nothing without --space unit")
	case s.space != ofUnit:
		return nil, nil
	case s.principal != byUnit:
		return nil, usage("--space unit needs --principal unit")
	}
	given := make(map[string]string)
	for _, pair := range s.spacesOf {
		unit, space, found := strings.Cut(pair, "=")
		_, twice := given[unit]
		switch {
		case !found || space == "":
			return nil, usage("--space-of: %q is not UNIT=SPACE", pair)
		case !podid.ValidUnit(unit):
			return nil, usage("--space-of: %q is no name of a unit that has processes, such as web.service or user-1000.slice", unit)
		case twice:
			return nil, usage("--space-of: %s has two spaces", unit)
		case space == wholeSpace:
			space = ""
		default:
			if err := session.CheckSpace(space); err != nil {
				return nil, usage("--space-of %s: %w", pair, err)
			}
		}
		given[unit] = space
	}
	return func(principal string) string {
		unit := localapi.UnitOf(principal)
		if space, is := given[unit]; is {
			return space
		}
		return unit
	}, nil
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
	if o.spaces, err = s.spaceOf(); err != nil {
		return err
	}
	if s.principal != byUnit {
		return nil
	}
	if o.principals, err = localapi.ByUnit(); err != nil {
		return usage("--principal unit: %w", err)
	}
	return nil
}
