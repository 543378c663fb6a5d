package lock

import "context"

// FromKey is the key of a value in the ctx of a call: for whom it is made, such as the session of an app. Where more is asked
// for than a store takes at a time, a driver can take turns among those. Calls for one keep their order.
type FromKey struct{}

// From tells for whom a call is made; nil: nobody says.
func From(ctx context.Context) any { return ctx.Value(FromKey{}) }
