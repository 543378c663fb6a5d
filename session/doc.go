// Package session gives apps locks: who owns which hold, what an app's life
// hangs on, what happens when it ends, and what happens when the store's lease
// ends.
//
// A [Manager] keeps the sidecar's one lease in the store. A [Session] is one
// app's liveness; when it ends, all its holds are released and all its waits
// are cancelled.
package session
