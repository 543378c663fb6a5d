package podid

import (
	"regexp"
	"strings"
	"sync"
)

var (
	// unitName is a name of systemd's that has processes, but for slices. A name may have
	// 255 bytes.
	unitName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-zA-Z0-9:_.\\@-]+\.(service|scope|socket|mount|swap)$`)
	})
	// userSlice has all that a user runs: sessions, and the user's own systemd.
	userSlice = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^user-[0-9]+\.slice$`) })
	sliceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9:_.\\]+(-[a-zA-Z0-9:_.\\]+)*\.slice$`) })
)

const maxUnitName = 255

// ValidUnit tells whether Unit could give this name.
func ValidUnit(name string) bool {
	return len(name) <= maxUnitName && (unitName().MatchString(name) || userSlice().MatchString(name))
}

// Unit gives the systemd unit of a path: the first one below the slices, because what is below a
// unit may be for its processes to name. Of what a user has started, by login or by the user's
// own systemd, it is the user's slice (user-1000.slice): a user can have any number of sessions.
// The error is an ErrUnknown.
func Unit(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", unknown(path, "is no path of a cgroup")
	}
	within := "" // the name of the last slice, without its ending
	for {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		// systemd puts an underscore before what the kernel could take for a file of its own.
		name := strings.TrimPrefix(part, "_")
		slice, isSlice := strings.CutSuffix(name, ".slice")
		switch {
		case len(name) > maxUnitName:
			return "", unknown(path, "has a name that is too long")
		case within == "user" && userSlice().MatchString(name):
			return name, nil
		case isSlice && sliceName().MatchString(name) && isWithin(slice, within):
			within = slice
		case unitName().MatchString(name):
			return name, nil
		default:
			return "", unknown(path, "is not in a unit of systemd")
		}
	}
}

// isWithin tells whether a slice is directly in another one: a-b.slice is in a.slice. The root has no name.
func isWithin(slice, within string) bool {
	return slice[:max(0, strings.LastIndexByte(slice, '-'))] == within
}
