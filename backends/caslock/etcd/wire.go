package etcd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/protofields"
)

// This file writes and reads the few messages of etcd that are used here. The numbers of
// their fields are those of rpc.proto and kv.proto in go.etcd.io/etcd/api/v3. The types that
// are generated of these describe all of etcd to each program that imports them, when it
// starts: that costs every sidecar a megabyte, whatever its store is.

// The calls that are used.
const (
	callTxn          = "/etcdserverpb.KV/Txn"
	callWatch        = "/etcdserverpb.Watch/Watch"
	callAuthenticate = "/etcdserverpb.Auth/Authenticate"
)

// message is one that is being written.
type message []byte

func (m *message) number(field protowire.Number, n int64) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), uint64(n)) //nolint:gosec // that is how int64 is written
}

// text is one field, whatever its parts.
func (m *message) text(field protowire.Number, parts ...string) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.BytesType), uint64(size))
	for _, p := range parts {
		*m = append(*m, p...)
	}
}

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

// nested is a message in a field.
func (m *message) nested(field protowire.Number, write func()) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	begin := len(*m)
	write()
	var size [10]byte
	*m = slices.Insert(*m, begin, protowire.AppendVarint(size[:0], uint64(len(*m)-begin))...) //nolint:gosec // not negative
}

// txnRequest is a transaction on the keys below a prefix.
func txnRequest(prefix string, t caslock.Txn) message {
	const compare, success, failure = 1, 2, 3
	var m message
	for _, c := range t.If {
		m.nested(compare, func() { m.condition(prefix, c) })
	}
	for _, w := range t.Then {
		m.nested(success, func() { m.write(prefix, w) })
	}
	if t.Else != nil {
		const txn = 4
		m.nested(failure, func() { m.bytes(txn, txnRequest(prefix, *t.Else)) })
	}
	for _, branch := range []protowire.Number{success, failure} {
		for _, r := range t.Read {
			m.nested(branch, func() { m.read(prefix, r) })
		}
	}
	return m
}

// condition is a Compare.
func (m *message) condition(prefix string, c caslock.Cond) {
	const result, target, key, modRevision = 1, 2, 3, 6
	const equal, greater = 0, 1
	const mod = 2
	than, version := int64(equal), c.Version
	if c.There {
		than, version = greater, 0
	}
	m.number(result, than)
	m.number(target, mod)
	m.text(key, prefix, c.Key)
	m.number(modRevision, version)
}

// write is a RequestOp.
func (m *message) write(prefix string, w caslock.Write) {
	const put, deleteRange = 2, 3
	const key, value = 1, 2
	if w.Delete {
		m.nested(deleteRange, func() { m.text(key, prefix, w.Key) })
		return
	}
	m.nested(put, func() {
		m.text(key, prefix, w.Key)
		m.bytes(value, w.Value)
	})
}

// read is a RequestOp.
func (m *message) read(prefix string, r caslock.Range) {
	const theRange = 1
	const key, rangeEnd, limit, countOnly = 1, 2, 3, 9
	m.nested(theRange, func() {
		m.text(key, prefix, r.Key)
		if r.End != "" {
			m.text(rangeEnd, prefix, r.End)
		}
		if r.Limit > 0 {
			m.number(limit, int64(r.Limit))
		}
		if r.Count {
			m.number(countOnly, 1)
		}
	})
}

// watchRequest asks for the changes of all keys that begin with prefix, which ends with a
// byte below 0xff.
func watchRequest(prefix string) message {
	const create = 1
	const key, rangeEnd = 1, 2
	last := len(prefix) - 1
	var m message
	m.nested(create, func() {
		m.text(key, prefix)
		m.text(rangeEnd, prefix[:last], string([]byte{prefix[last] + 1}))
	})
	return m
}

func authenticateRequest(user, password string) message {
	const name, secret = 1, 2
	var m message
	m.text(name, user)
	m.text(secret, password)
	return m
}

// answer calls each for the fields of an answer, up to the first error.
func answer(m []byte, each func(protofields.Field) error) error {
	if err := protofields.Each(m, each); err != nil {
		return fmt.Errorf("read an answer of etcd: %w", err)
	}
	return nil
}

// txnResponse reads the answer to a txnRequest.
func txnResponse(m []byte, prefix string, t caslock.Txn) (r caslock.Result, err error) {
	const header, succeeded, responses = 1, 2, 3
	var parts [][]byte
	err = answer(m, func(f protofields.Field) error {
		switch f.Number {
		case header:
			return readHeader(f.Bytes, &r)
		case succeeded:
			r.Done = f.N != 0
		case responses:
			parts = append(parts, f.Bytes)
		}
		return nil
	})
	if err != nil {
		return caslock.Result{}, err
	}
	first := 0 // of what was read
	switch {
	case r.Done:
		first = len(t.Then)
	case t.Else != nil:
		first = 1
	}
	if want := first + len(t.Read); len(parts) != want {
		return caslock.Result{}, fmt.Errorf("read an answer of etcd: it has %d parts, not %d", len(parts), want)
	}
	if !r.Done && t.Else != nil {
		if r.Else, err = txnOp(parts[0]); err != nil {
			return caslock.Result{}, err
		}
	}
	for i, p := range parts[first:] {
		found, err := responseOp(p, prefix, t.Read[i].Count)
		if err != nil {
			return caslock.Result{}, err
		}
		r.Reads = append(r.Reads, found)
	}
	return r, nil
}

// txnOp reads whether a transaction inside another one was carried out.
func txnOp(m []byte) (done bool, err error) {
	const txn = 4
	const succeeded = 2
	err = protofields.Each(m, func(f protofields.Field) error {
		if f.Number != txn {
			return nil
		}
		return protofields.Each(f.Bytes, func(f protofields.Field) error {
			done = done || f.Number == succeeded && f.N != 0
			return nil
		})
	})
	return done, err
}

// readHeader reads a ResponseHeader.
func readHeader(m []byte, r *caslock.Result) error {
	const clusterID, revision = 1, 3
	return protofields.Each(m, func(f protofields.Field) error {
		switch f.Number {
		case clusterID:
			r.Server = strconv.FormatUint(f.N, 16)
		case revision:
			r.Revision = int64(f.N) //nolint:gosec // that is how int64 is written
		}
		return nil
	})
}

// responseOp reads what a range has found, or only how many.
func responseOp(m []byte, prefix string, onlyCount bool) (found caslock.Found, err error) {
	const theRange = 1
	const kvs, count = 2, 4
	err = protofields.Each(m, func(f protofields.Field) error {
		if f.Number != theRange {
			return nil
		}
		return protofields.Each(f.Bytes, func(f protofields.Field) error {
			switch {
			case f.Number == count:
				found.Count = int(f.N) //nolint:gosec // of keys
			case f.Number == kvs && !onlyCount:
				kv, err := keyValue(f.Bytes, prefix)
				if err != nil {
					return err
				}
				found.KVs = append(found.KVs, kv)
			}
			return nil
		})
	})
	return found, err
}

func keyValue(m []byte, prefix string) (kv caslock.KV, err error) {
	const key, modRevision, value = 1, 3, 5
	err = protofields.Each(m, func(f protofields.Field) error {
		switch f.Number {
		case key:
			kv.Key = strings.TrimPrefix(string(f.Bytes), prefix)
		case modRevision:
			kv.Version = int64(f.N) //nolint:gosec // that is how int64 is written
		case value:
			kv.Value = f.Bytes
		}
		return nil
	})
	return kv, err
}

// news is what a watch tells.
type news struct {
	created  bool
	canceled bool
	reason   string // why it was canceled
	changes  []caslock.KV
}

// watchResponse reads news of keys below a prefix.
func watchResponse(m []byte, prefix string) (n news, err error) {
	const created, canceled, compactRevision, cancelReason, events = 3, 4, 5, 6, 11
	err = answer(m, func(f protofields.Field) error {
		switch f.Number {
		case created:
			n.created = f.N != 0
		case canceled:
			n.canceled = n.canceled || f.N != 0
		case compactRevision:
			n.canceled = n.canceled || f.N != 0
		case cancelReason:
			n.reason = string(f.Bytes)
		case events:
			kv, err := event(f.Bytes, prefix)
			if err != nil {
				return err
			}
			n.changes = append(n.changes, kv)
		}
		return nil
	})
	return n, err
}

// event reads one change.
func event(m []byte, prefix string) (kv caslock.KV, err error) {
	const kind, changed = 1, 2
	const deleted = 1
	gone := false
	err = protofields.Each(m, func(f protofields.Field) (err error) {
		switch f.Number {
		case kind:
			gone = f.N == deleted
		case changed:
			kv, err = keyValue(f.Bytes, prefix)
		}
		return err
	})
	if gone {
		kv.Version = 0
	}
	return kv, err
}

// authenticateResponse reads a token.
func authenticateResponse(m []byte) (token string, err error) {
	const theToken = 2
	err = answer(m, func(f protofields.Field) error {
		if f.Number == theToken {
			token = string(f.Bytes)
		}
		return nil
	})
	return token, err
}
