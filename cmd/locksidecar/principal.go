package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/localapi/podid"
	"github.com/locksidecar/locksidecar/session"
)

// principals are the values of --principal.
var principals = []string{"uid", "unit", "pod"}

// principalFlag says whose the limits are. Its number is an index of principals.
type principalFlag uint8

const (
	byUnit principalFlag = 1
	byPod  principalFlag = 2
)

func (p *principalFlag) String() string { return principals[*p] }
func (*principalFlag) Type() string     { return "kind" }

func (p *principalFlag) Set(s string) error {
	for i, name := range principals {
		if name == s {
			*p = principalFlag(i)
			return nil
		}
	}
	return errors.New("must be uid, unit or pod")
}

// spaces are the values of --space.
var spaces = []string{"one", "unit", "namespace"}

// spaceFlag says who has names of locks for itself. Its number is an index of spaces.
type spaceFlag uint8

const (
	ofUnit      spaceFlag = 1
	ofNamespace spaceFlag = 2
)

// wholeSpace is the SPACE of who sees all spaces.
const wholeSpace = "/"

func (p *spaceFlag) String() string { return spaces[*p] }
func (*spaceFlag) Type() string     { return "kind" }

func (p *spaceFlag) Set(s string) error {
	i := slices.Index(spaces, s)
	if i < 0 {
		return errors.New("must be one, unit or namespace")
	}
	*p = spaceFlag(i) //nolint:gosec // one of three
	return nil
}

// spaceOf says which space each principal has; nil: all have the same.
func (s *serveFlags) spaceOf() (func(principal string) string, error) {
	switch {
	case s.space == 0 && len(s.spacesOf) > 0:
		return nil, usage("--space-of means nothing without --space unit or --space namespace")
	case s.space == 0:
		return nil, nil
	case s.space == ofUnit && s.principal != byUnit:
		return nil, usage("--space unit needs --principal unit")
	case s.space == ofNamespace && s.principal != byPod:
		return nil, usage("--space namespace needs --principal pod")
	}
	given, err := s.spacesGiven()
	if err != nil {
		return nil, err
	}
	name := localapi.UnitOf
	if s.space == ofNamespace {
		name = localapi.NamespaceOf // of the sidecar's own container it is empty: all spaces
	}
	return func(principal string) string {
		own := name(principal)
		if space, is := given[own]; is {
			return space
		}
		return own
	}, nil
}

// spacesGiven are those of --space-of.
func (s *serveFlags) spacesGiven() (map[string]string, error) {
	given := make(map[string]string)
	for _, pair := range s.spacesOf {
		unit, space, found := strings.Cut(pair, "=")
		_, twice := given[unit]
		switch {
		case !found || space == "":
			return nil, usage("--space-of: %q is not %s", pair, map[spaceFlag]string{ofUnit: "UNIT=SPACE", ofNamespace: "NAMESPACE=SPACE"}[s.space])
		case s.space == ofNamespace && !podid.ValidNamespace(unit):
			return nil, usage("--space-of: %q is no name of a namespace of Kubernetes", unit)
		case s.space == ofNamespace && space == wholeSpace:
			return nil, usage("--space-of: %s cannot have all spaces: only the sidecar's own container has them", unit)
		case s.space == ofUnit && !podid.ValidUnit(unit):
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
	return given, nil
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
	if err := s.togetherLimits(o); err != nil {
		return err
	}
	switch s.principal {
	case byUnit:
		o.principals, err = localapi.ByUnit()
	case byPod:
		err = s.pods(o)
	default:
		if s.allowAccounts != nil {
			return usage("--allow-service-account means nothing without --principal pod")
		}
	}
	if err != nil {
		return usage("--principal %s: %w", &s.principal, err)
	}
	return nil
}

// pods are the settings of a sidecar that serves the pods of a node.
func (s *serveFlags) pods(o *sidecarOptions) (err error) {
	switch {
	case s.space != ofNamespace:
		return errors.New("it needs --space namespace: names of locks that several namespaces see would be nobody's own")
	case len(s.allowUIDs)+len(s.allowGIDs)+len(s.adminUIDs) > 0:
		return errors.New("--allow-uid, --allow-gid and --admin-uid mean nothing with it: each pod chooses its users")
	case len(s.allowAccounts) == 0:
		return errors.New("it needs --allow-service-account: who may take locks here, such as 'shop/*'")
	}
	if err := localapi.CheckSideDoors(s.socketsFolder, o.socket); s.socketsFolder != "" && err != nil {
		return fmt.Errorf("--sockets-folder %s: the socket of a pod: %w", s.socketsFolder, err)
	}
	for _, pattern := range s.allowAccounts {
		namespace, account, ok := strings.Cut(pattern, "/")
		if !ok || namespace == "" || account == "" || strings.Contains(account, "/") {
			return fmt.Errorf("--allow-service-account: %q is not NAMESPACE/NAME, where each may end in *", pattern)
		}
	}
	// Agents that follow one another serve at the same time for a while. If each had a store of its own, each would
	// grant the same locks.
	o.replace = !backends.Private(o.store)
	o.sideDoors = s.socketsFolder
	o.hideNames = true // all pods of a cluster reach --http-addr
	o.access.AdminUIDs, o.access.Admins = nil, []string{localapi.NodePrincipal}
	o.principals, err = localapi.ByPod(podid.Folder(s.podsFolder), func(p podid.Principal) bool {
		return slices.ContainsFunc(s.allowAccounts, func(pattern string) bool {
			namespace, account, _ := strings.Cut(pattern, "/")
			return like(namespace, p.Namespace) && like(account, p.ServiceAccount)
		})
	})
	return err
}

// like tells whether a name is that of the pattern, which may end in *.
func like(pattern, name string) bool {
	begin, open := strings.CutSuffix(pattern, "*")
	return name == pattern || open && strings.HasPrefix(name, begin)
}
