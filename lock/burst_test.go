package lock

import "testing"

type burst struct {
	more bool
	fs   []func()
}

func (b *burst) Later(f func()) bool {
	if b.more {
		b.fs = append(b.fs, f)
	}
	return b.more
}

func TestBurst(t *testing.T) {
	f := func() {}
	if Later(t.Context(), f) {
		t.Error("others come with a call that is alone")
	}
	b := &burst{more: true}
	ctx := WithBurst(t.Context(), b)
	if !Later(ctx, f) || len(b.fs) != 1 {
		t.Error("the burst was not asked")
	}
	if b.more = false; Later(ctx, f) {
		t.Error("others come behind the last one")
	}
}
