package lock

// Near is a Lease that is answered without a trip, because its store is in this process. On a busy machine it may take long
// until the processor gets to the answer, but it comes for certain.
type Near interface {
	Lease
	IsNear() bool
}

// IsNear reports whether the store of a lease is in this process.
func IsNear(l Lease) bool {
	n, ok := l.(Near)
	return ok && n.IsNear()
}
