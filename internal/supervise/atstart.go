package supervise

// Go's runtime puts handlers of its own in the place of nearly all signals before any code of
// ours runs, and does not tell what was there. But it asks a program whether that has
// another sigaction(2), by the variable _cgo_sigaction, which runtime/cgo fills in for
// the sanitizers of C. Ours looks at all signals when it is called first, which is before
// the runtime has changed any, and answers EINVAL; for that the runtime makes the system
// call itself, as without us. (The linker takes the definition that has content.)
//
// A program that is linked with C has runtime/cgo, and so has none of this; nor have
// other processors than amd64 and arm64. There atStartKnown stays 0.
var (
	atStartKnown   uint32
	ignoredAtStart uint64 // bit N-1: signal N
)
