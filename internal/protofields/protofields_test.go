package protofields

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// sample has a field of each kind, each with a number of its own.
func sample() (m []byte) {
	m = protowire.AppendVarint(protowire.AppendTag(m, 1, protowire.VarintType), 300)
	m = protowire.AppendString(protowire.AppendTag(m, 2, protowire.BytesType), "text")
	m = protowire.AppendFixed32(protowire.AppendTag(m, 3, protowire.Fixed32Type), 7)
	m = protowire.AppendFixed64(protowire.AppendTag(m, 4, protowire.Fixed64Type), 7)
	m = protowire.AppendTag(m, 5, protowire.StartGroupType)
	m = protowire.AppendTag(m, 5, protowire.EndGroupType)
	return protowire.AppendString(protowire.AppendTag(m, 16, protowire.BytesType), "")
}

func read(m []byte) (all []string, err error) {
	err = Each(m, func(f Field) error {
		all = append(all, fmt.Sprintf("%d:%d%s", f.Number, f.N, f.Bytes))
		return nil
	})
	return all, err
}

// A message is read up to its end, with what is unknown in it. One that was cut off says so, or is whole.
func TestEach(t *testing.T) {
	m := sample()
	want := []string{"1:300", "2:0text", "3:0", "4:0", "5:0", "16:0"}
	if all, err := read(m); err != nil || !slices.Equal(all, want) {
		t.Errorf("got %q, %v; want %q", all, err, want)
	}
	whole := 0
	for cut := range m {
		all, err := read(m[:cut])
		if err == nil {
			whole++
		}
		if !slices.Equal(all, want[:len(all)]) {
			t.Errorf("of the first %d bytes: %q", cut, all)
		}
	}
	if whole != len(want) { // nothing, and up to the end of each field but the last
		t.Errorf("%d beginnings are messages, want %d", whole, len(want))
	}
}

// The first error ends it.
func TestEachEnds(t *testing.T) {
	enough := errors.New("enough")
	calls := 0
	err := Each(sample(), func(Field) error { calls++; return enough })
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
