package session

import (
	"strings"

	"github.com/locksidecar/locksidecar/lock"
)

// Space is what some apps see of the store: the locks, records and detached holds whose names
// begin as the space says. Nothing that goes through a Space reaches a name of another one. Who calls
// chooses the Space for an app, by who it is; the app never does.
//
// The namespace of the sidecar is a space as well, the one of everybody: all others are in it. No
// space but that one has another one in it, for what stands before the names in a space has one
// slash more than the namespace, at its end.
type Space struct {
	m      *Manager
	name   string // without the namespace; empty: it is the one of everybody
	prefix string // before the names of apps in the store: empty, or with a slash at the end
}

// Everybody is the space of apps that have no space of their own: the whole namespace.
func (m *Manager) Everybody() *Space { return m.everybody }

// In gives the space of that name. An empty one is Everybody.
//
//	*lock.InvalidError: the name is refused, see CheckSpace, or too long with the namespace.
func (m *Manager) In(name string) (*Space, error) {
	if name == "" {
		return m.everybody, nil
	}
	if err := CheckSpace(name); err != nil {
		return nil, err
	}
	sp := &Space{m: m, name: name, prefix: m.everybody.prefix + name + "/"}
	if n := lock.MaxResourceBytes - len(sp.prefix); n < 1 {
		return nil, invalid("space", "%q is too long: with the namespace it leaves no room for names", name)
	}
	return sp, nil
}

// CheckSpace tells whether a space may have that name. It has no slash: a slash ends it in the
// store, and "a/b" with "c" would be the same name there as "a" with "b/c".
func CheckSpace(name string) error { return checkBefore("space", name) }

// checkBefore checks what stands before names in the store.
func checkBefore(field, name string) error {
	if strings.Contains(name, "/") {
		return invalid(field, "must not contain a slash: a slash ends it in the store")
	}
	if _, err := lock.ParseResource(name + "/x"); err != nil {
		return invalid(field, "must be valid UTF-8 without control characters, at most %d bytes", lock.MaxResourceBytes-2)
	}
	return nil
}

// Whole tells whether the space has all that the sidecar has.
func (sp *Space) Whole() bool { return sp == sp.m.everybody }

// Name is the name; empty: it is the one of everybody.
func (sp *Space) Name() string { return sp.name }

// inStore checks a name from an app and gives that of the store.
func (sp *Space) inStore(name string) (lock.Resource, error) {
	res, err := lock.ParseResource(name)
	if err != nil || sp.prefix == "" {
		return res, err
	}
	if err := sp.fits("resource", name); err != nil {
		return "", err
	}
	return lock.Resource(sp.prefix + name), nil
}

// fits checks that there is room in the store for a name, or the beginning of one.
func (sp *Space) fits(field, name string) error {
	most := lock.MaxResourceBytes - len(sp.prefix)
	switch {
	case len(name) <= most:
		return nil
	case sp.prefix == "":
		return invalid(field, "is %d bytes long, at most %d are allowed", len(name), most)
	default:
		return invalid(field, "is %d bytes long, at most %d are allowed: in the store %q stands before it", len(name), most, sp.prefix)
	}
}

// has tells whether a resource of the store is in the space.
func (sp *Space) has(r lock.Resource) bool { return strings.HasPrefix(string(r), sp.prefix) }

// inApp is the name of a resource of the store for apps.
func (sp *Space) inApp(r lock.Resource) string { return strings.TrimPrefix(string(r), sp.prefix) }

// handed is the name for apps of what a handle is of. Handles go from app to app, so they have the
// name of the store in them: in another space they are worth nothing.
func (sp *Space) handed(r lock.Resource) (string, error) {
	name, ours := strings.CutPrefix(string(r), sp.prefix)
	if !ours || name == "" {
		return "", invalid("handle", "is of another space of names than yours")
	}
	return name, nil
}

// told is the name of a resource for metrics, which are of all spaces.
func (sp *Space) told(name string) string {
	if sp.name == "" {
		return name
	}
	return sp.name + "/" + name
}

// Info tells about the sidecar. What it counts is of this space.
func (sp *Space) Info() Info {
	i := sp.m.Info()
	if sp.Whole() {
		return i
	}
	i.Namespace = strings.TrimSuffix(sp.prefix, "/")
	i.Sessions, i.Holds, i.Waiters, i.Parked = 0, 0, 0, 0
	sp.m.mu.Lock()
	defer sp.m.mu.Unlock()
	if u := sp.m.usages[sp.share()]; u != nil {
		i.Sessions, i.Holds, i.Waiters = u.sessions, int(u.kept.Load()), int(u.waits.Load())
	}
	return i
}
