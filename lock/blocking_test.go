package lock

import (
	"context"
	"testing"
)

type key struct{}

func TestBlocking(t *testing.T) {
	ctx := context.WithValue(t.Context(), key{}, "kept")
	Blocking(ctx) // nobody wants to know
	n := 0
	told := WithBlocking(ctx, func() { n++ })
	Blocking(told)
	Blocking(told)
	if n != 2 || told.Value(key{}) != "kept" {
		t.Errorf("called %d times, want 2; the ctx below has %v", n, told.Value(key{}))
	}
}

type plain struct{ Lease }

type prompt struct {
	Lease
	tells bool
}

func (p prompt) TellsBlocking() bool { return p.tells }

func TestTellsBlocking(t *testing.T) {
	for _, c := range []struct {
		lease Lease
		want  bool
	}{{plain{}, false}, {prompt{tells: false}, false}, {prompt{tells: true}, true}} {
		if got := TellsBlocking(c.lease); got != c.want {
			t.Errorf("%#v: %v, want %v", c.lease, got, c.want)
		}
	}
}
