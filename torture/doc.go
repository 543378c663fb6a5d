// Package torture runs real sidecars and real apps on a real store, breaks all of
// them for a while, and then proves from what the apps have written down that no
// promise was broken.
//
// A run is made from a seed: the package schedule says what happens to whom and
// when, the package app is what each app process does, and the package history
// judges what they have written down. This package starts the processes, carries
// out the faults, and heals them; all of it is tests:
//
//	make torture                               # each store, two minutes each
//	make torture STORE=Redis SEED=42 FOR=30s   # the same faults and choices again
//	make torture-breaks                        # a sidecar that breaks a law is caught
//
// A run of the same seed has the same faults at the same moments and apps that make
// the same choices. What meets what depends on the machine, too.
package torture
