// Package protofields reads messages of Protocol Buffers field by field, for those who know a few
// messages of a large API and do without the types that are generated of it.
package protofields

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field is one field of a message.
type Field struct {
	Number protowire.Number
	N      uint64 // of a number
	Bytes  []byte // of a text, bytes or a message; a part of the message
}

// Each calls f for the fields of a message, up to the first error. A field of another kind comes with
// its number alone.
func Each(message []byte, f func(Field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return malformed(n)
		}
		message = message[n:]
		field := Field{Number: number}
		switch kind {
		case protowire.VarintType:
			field.N, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			field.Bytes, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return malformed(n)
		}
		message = message[n:]
		if err := f(field); err != nil {
			return err
		}
	}
	return nil
}

func malformed(n int) error { return fmt.Errorf("malformed message: %w", protowire.ParseError(n)) }
