// Package session gives locks to apps. It knows who owns which hold and when an app is
// over, and does what follows when an app ends or when the store's lease ends.
//
// A [Manager] keeps the sidecar's one lease in the store. A [Session] lasts as long as
// one app. When it ends, the session releases all its holds and cancels all its waits.
package session
