package session

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/session/ledger"
)

// How many resources can be asked for together.
const (
	minParts = 2
	maxParts = 16
)

// checkParts gives the resources of a request for several as they are named in the
// store, in the byte order of these names: all sidecars take them in the same order. nil:
// the request is for one.
func (sp *Space) checkParts(r *AcquireRequest) ([]ledger.Part, error) {
	switch n := len(r.Resources); {
	case n == 0:
		return nil, nil
	case r.Resource != "":
		return nil, invalid("resources", "must not be there beside resource")
	case n < minParts || n > maxParts:
		return nil, invalid("resources", "are %d, must be %d to %d", n, minParts, maxParts)
	case r.Reentrant:
		return nil, invalid("reentrant", "is not possible with resources")
	}
	parts := make([]ledger.Part, len(r.Resources))
	for i, name := range r.Resources {
		res, err := sp.inStore(name)
		if err != nil {
			return nil, err
		}
		parts[i] = ledger.Part{Resource: res, Name: nameIn(res, name)}
	}
	slices.SortFunc(parts, func(a, b ledger.Part) int { return cmp.Compare(a.Resource, b.Resource) })
	for i := 1; i < len(parts); i++ {
		if parts[i] == parts[i-1] {
			return nil, invalid("resources", "have %q twice", parts[i].Name)
		}
	}
	return parts, nil
}
