package storeurl

import (
	"errors"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

func TestShard(t *testing.T) {
	for raw, want := range map[string][2]string{
		"redis://h": {"redis://h", "redis://h"},
		"redis://user:pa%20ss@H:6379/2?timeout=3s":        {"redis://h:6379/2", "redis://user:pa%20ss@H:6379/2?timeout=3s"},
		"zk://c:2181,a:2181,b/chroot/?digest=x":           {"zk://a:2181,b,c:2181/chroot", "zk://c:2181,a:2181,b/chroot/?digest=x"},
		"mysql://u:p@h/locks?shard=eu-1":                  {"eu-1", "mysql://u:p@h/locks"},
		"mysql://u:p@h/locks?prefix=x_&shard=eu-1&tls=on": {"eu-1", "mysql://u:p@h/locks?prefix=x_&tls=on"},
	} {
		name, without, err := Shard(raw)
		if err != nil || name != want[0] || without != want[1] {
			t.Errorf("Shard(%s) = %q, %q, %v, want %q", raw, name, without, err, want)
		}
	}
	for _, raw := range []string{"embedded:", "redis://h?shard=", "redis://h?shard=a+b", "redis://h?shard=a&shard=b", "redis://h?shard=%zz"} {
		if name, _, err := Shard(raw); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("Shard(%s) = %q, %v, want ErrInvalid", raw, name, err)
		}
	}
}
