package shards

import "github.com/locksidecar/locksidecar/lock"

// FNV-1a, 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// seed is the hash of a shard's name, and a zero byte that ends it.
func seed(name string) uint64 { return addTo(addTo(fnvOffset, name), "\x00") }

func addTo(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// mix spreads what FNV leaves alike in names that differ in their last letters only: the end of
// MurmurHash3.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// pick is the number of a resource's shard: rendezvous hashing (Thaler, Ravishankar 1996). It
// depends on the names alone. A shard more takes names from all others, and moves none between
// them. Every sidecar of every version must pick the same.
func (b *Backend) pick(r lock.Resource) int {
	best, most := 0, uint64(0)
	for i, s := range b.shards {
		if h := mix(addTo(s.seed, string(r))); i == 0 || h > most {
			best, most = i, h
		}
	}
	return best
}

func (b *Backend) of(r lock.Resource) *shard { return b.shards[b.pick(r)] }
