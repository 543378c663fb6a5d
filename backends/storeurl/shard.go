package storeurl

import (
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// maxShardName bounds the option shard, in bytes.
const maxShardName = 64

// Shard gives the name of the shard that a URL leads to, and the URL without the option that
// names it. Without that option it is the URL without user, password and options, with the hosts in byte
// order: these may change and the shard stays what it is. The error is lock.ErrInvalid.
func Shard(raw string) (name, without string, err error) {
	p, ok := split(raw)
	if !ok {
		return "", "", Invalid(Redact(raw) + " cannot be a shard: it is not a URL with a host")
	}
	path, query, _ := strings.Cut(p.tail, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", "", Invalid("has options that cannot be read")
	}
	if !values.Has("shard") {
		hosts := strings.Split(strings.ToLower(p.hosts), ",")
		slices.Sort(hosts)
		return pieces{scheme: p.scheme, hosts: strings.Join(hosts, ","), tail: strings.TrimRight(path, "/")}.String(), raw, nil
	}
	name = values.Get("shard")
	strange := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.", r)
	}
	if name == "" || len(name) > maxShardName || strings.ContainsFunc(name, strange) || len(values["shard"]) > 1 {
		return "", "", Invalid("option shard must be one name of 1 to 64 letters, digits, '-', '_' and '.'")
	}
	values.Del("shard")
	if p.tail = path; len(values) > 0 {
		p.tail += "?" + values.Encode()
	}
	return name, p.String(), nil
}
