package lock

// Spread is a Lease whose resources live at several places. One may not answer while the others do.
type Spread interface {
	Lease
	// Places is how many there are.
	Places() int
	// Place is the number of that of a resource, from 0.
	Place(r Resource) int
}

// PlacesOf is at how many places the resources of a lease live.
func PlacesOf(l Lease) int {
	if s, ok := l.(Spread); ok {
		return s.Places()
	}
	return 1
}

// PlaceOf is the number of the place where a resource lives.
func PlaceOf(l Lease, r Resource) int {
	if s, ok := l.(Spread); ok {
		return s.Place(r)
	}
	return 0
}
