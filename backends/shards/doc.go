// Package shards makes one store of several. Each resource lives at one of them, its shard, which
// its name alone decides. So a sidecar needs no directory, and a shard that is away takes only its
// own locks with it.
//
// A [Lease] here has a lease at each shard. It is proven for as long as the least of them, so an app
// that knows one moment for all its holds never relies on one for longer than the shard keeps it. A
// shard that does not answer would end the proof of all. So it is given up before that: its holds are told as
// lost one by one ([lock.Expired]), and from then on it does not count. A new lease is opened there in the
// background.
//
// Two sidecars that name different shards would look for one lock at two places. So each shard has a
// record of the set that it belongs to, see set.go.
//
// The shards may be of different kinds. What the store of a shard cannot do is refused for
// the resources there.
package shards
