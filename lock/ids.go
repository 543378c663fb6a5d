package lock

import (
	"crypto/rand"
	"encoding/hex"
)

// HoldID names one hold, or one waiter that will become a hold. The requester
// chooses it before the first attempt, so it is also the idempotency key of the
// request in the store: a retry with the same HoldID finds its own grant or its
// own place in the queue. In the local API it is the lock_id.
type HoldID string

// LeaseID names one lease, that is, one sidecar's session in the store.
type LeaseID string

// NewHoldID returns an unguessable id: 128 random bits as 32 hex digits.
func NewHoldID() HoldID { return HoldID(randomHex()) }

// NewLeaseID returns an unguessable id: 128 random bits as 32 hex digits.
func NewLeaseID() LeaseID { return LeaseID(randomHex()) }

func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24: it crashes the program instead
	return hex.EncodeToString(b[:])
}

// Fence is a fencing token: strictly larger than that of every earlier
// exclusive grant of the same resource; for a shared grant, not smaller. That of a
// permit is larger than those of all earlier permits of the resource. It is at most 2^63-1.
type Fence int64

// FenceRange is how many fences belong to one number of a store. The store's
// number is the first; the others are for grants inside the sidecar under the
// same hold in the store.
const FenceRange = 1024

// FenceOf is the fence of a number that a store has given. Stores that count by
// time use microseconds since the Unix epoch, so fences keep growing when a
// counter is lost, and stay below 2^63 until the year 2255.
func FenceOf(number int64) Fence { return Fence(number) * FenceRange }

// PermitFence is the fence of a permit with that slot.
func PermitFence(number int64, slot int) Fence { return FenceOf(number) + Fence(slot) }

// Slot is which of its permits a hold with the fence has, 0 to Mode.Limit()-1: no two that
// hold at the same time have the same. Only for permits.
func (f Fence) Slot() int { return int(f % FenceRange) }
