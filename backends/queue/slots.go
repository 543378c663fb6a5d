package queue

import (
	"math/bits"

	"github.com/locksidecar/locksidecar/lock"
)

// slots are the numbers of permits that are taken: a bit for each.
type slots [lock.MaxPermits / 64]uint64

// free is the lowest number that is not taken. There is one.
func (s *slots) free() int {
	i := 0
	for s[i] == ^uint64(0) {
		i++
	}
	return 64*i + bits.TrailingZeros64(^s[i])
}

func (s *slots) take(n int) { s[n/64] |= 1 << (n % 64) }

func (s *slots) giveBack(n int) { s[n/64] &^= 1 << (n % 64) }
