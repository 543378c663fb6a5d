package zksession

import (
	"encoding/binary"
	"errors"
)

// This file is jute, the encoding of ZooKeeper's protocol: big-endian numbers,
// and strings, buffers and lists after their length. A length of -1 is null.

func appendInt(b []byte, v int32) []byte  { return binary.BigEndian.AppendUint32(b, uint32(v)) } //nolint:gosec // the same bits
func appendLong(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) } //nolint:gosec // the same bits

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString(b []byte, s string) []byte {
	b = appendInt(b, int32(len(s))) //nolint:gosec // paths and names are short
	return append(b, s...)
}

func appendBuffer(b, p []byte) []byte {
	b = appendInt(b, int32(len(p))) //nolint:gosec // data of nodes is short
	return append(b, p...)
}

func appendStrings(b []byte, all []string) []byte {
	b = appendInt(b, int32(len(all))) //nolint:gosec // they were in memory
	for _, s := range all {
		b = appendString(b, s)
	}
	return b
}

// errMalformed: a packet is not what the protocol says.
var errMalformed = errors.New("malformed packet from ZooKeeper")

// decoder reads a packet. After the first mistake it gives zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = errMalformed
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) int() int32 {
	if p := d.take(4); p != nil {
		return int32(binary.BigEndian.Uint32(p)) //nolint:gosec // the same bits
	}
	return 0
}

func (d *decoder) long() int64 {
	if p := d.take(8); p != nil {
		return int64(binary.BigEndian.Uint64(p)) //nolint:gosec // the same bits
	}
	return 0
}

func (d *decoder) bool() bool {
	p := d.take(1)
	return p != nil && p[0] != 0
}

// buffer gives a part of the packet itself.
func (d *decoder) buffer() []byte {
	n := d.int()
	if n <= 0 {
		return nil
	}
	return d.take(int(n))
}

func (d *decoder) string() string { return string(d.buffer()) }

func (d *decoder) strings() []string {
	n := int(d.int())
	if n <= 0 || n > len(d.b)/4 { // each has its length at least
		if n > 0 {
			d.err = errMalformed
		}
		return nil
	}
	all := make([]string, n)
	for i := range all {
		all[i] = d.string()
	}
	return all
}

// Stat is what ZooKeeper knows about a node beside its data.
type Stat struct {
	Czxid          int64 // number of the transaction that made it
	Mzxid          int64 // number of the transaction that changed it last
	Ctime          int64 // when it was made, ms by the leader's clock
	Mtime          int64 // when it was changed last, ms by the leader's clock
	Version        int32 // how often its data was changed
	EphemeralOwner int64 // the session that it lives with; 0: none
	NumChildren    int32
}

func (d *decoder) stat() Stat {
	s := Stat{Czxid: d.long(), Mzxid: d.long(), Ctime: d.long(), Mtime: d.long(), Version: d.int()}
	d.take(4 + 4) // cversion, aversion
	s.EphemeralOwner = d.long()
	d.take(4) // length of the data
	s.NumChildren = d.int()
	d.take(8) // pzxid
	return s
}
