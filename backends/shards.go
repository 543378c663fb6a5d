package backends

import (
	"errors"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/backends/shards"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

// URLs are those of the shards, where there are several: they stand with spaces between them. A URL has no
// space.
func URLs(store string) []string { return strings.Fields(store) }

// each does something to every URL.
func each(store string, do func(rawURL string) (string, error)) (string, error) {
	list := URLs(store)
	if len(list) < 2 {
		return do(store)
	}
	for i, raw := range list {
		var err error
		if list[i], err = do(raw); err != nil {
			return "", err
		}
	}
	return strings.Join(list, " "), nil
}

// OpenStore opens the store of a sidecar: that of one URL, or one made of the stores of several. wrap is
// called for each of them, and what it returns is what stands for it. Errors as for Open.
func OpenStore(store string, observe lock.Observe, wrap func(lock.Backend) lock.Backend, tell func(shards.News)) (lock.Backend, error) {
	list := URLs(store)
	if len(list) < 2 {
		b, err := Open(store, observe)
		if err != nil {
			return nil, err
		}
		if Private(store) {
			return wrap(b), nil
		}
		return wrap(shards.Alone(b, Redact(store))), nil
	}
	parts, err := OpenShards(store, observe)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		parts[i].Backend = wrap(parts[i].Backend)
	}
	b, err := shards.New(parts, shards.Options{Tell: tell})
	if err != nil {
		return nil, errors.Join(err, closeAll(parts))
	}
	return b, nil
}

func closeAll(parts []shards.Shard) error {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.Backend.Close())
	}
	return errors.Join(errs...)
}

// OpenShards opens the stores of the URLs, which may be one, each with its name as a shard. Errors as for
// Open.
func OpenShards(store string, observe lock.Observe) ([]shards.Shard, error) {
	var parts []shards.Shard
	for _, raw := range URLs(store) {
		s, err := openShard(raw, observe)
		if err != nil {
			return nil, errors.Join(err, closeAll(parts))
		}
		parts = append(parts, s)
	}
	return parts, nil
}

func openShard(raw string, observe lock.Observe) (shards.Shard, error) {
	if Private(raw) {
		return shards.Shard{}, storeurl.Invalid(raw + " cannot be a shard: its locks keep nobody out beyond the sidecar")
	}
	name, plain, err := storeurl.Shard(raw)
	if err != nil {
		return shards.Shard{}, err
	}
	b, err := Open(plain, observe)
	if err != nil {
		return shards.Shard{}, fmt.Errorf("shard %s: %w", name, err)
	}
	return shards.Shard{Name: name, Backend: b}, nil
}
