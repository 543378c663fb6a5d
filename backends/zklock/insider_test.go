package zklock

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/backends/backendtest"
)

var _ backendtest.Insider = (*harness)(nil)

// containerOwner is what a container has in place of the session that owns it.
const containerOwner = -1 << 63

// Leftovers makes the harness a backendtest.Insider. Containers that are empty
// are left out: the server removes them.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	t.Helper()
	b := openAt(t, h.server.URL()+"?"+h.options)
	tr := b.tree
	_ = b.Close() // it was never used
	c, _, err := zk.Connect(hosts(h.server.URL()), 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	failed := func(err error) bool {
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			left = append(left, "what nobody can see: "+err.Error())
		}
		return err != nil
	}
	children := func(path string) []string {
		names, _, err := c.Children(path)
		failed(err)
		return names
	}
	var walk func(path string)
	walk = func(path string) {
		there, st, err := c.Exists(path)
		if failed(err) {
			return
		}
		if there && st.EphemeralOwner != containerOwner {
			left = append(left, "node "+path)
		}
		for _, name := range children(path) {
			walk(path + "/" + name)
		}
	}
	for _, bucket := range children(tr.records()) {
		for _, name := range children(tr.records() + "/" + bucket) {
			if r, ok := unescape(name); ok && strings.HasPrefix(string(r), prefix) {
				left = append(left, "record of "+string(r))
			}
		}
	}
	for _, bucket := range children(tr.keeps()) {
		for _, id := range children(tr.keeps() + "/" + bucket) {
			data, _, err := c.Get(tr.keeps() + "/" + bucket + "/" + id)
			var of keptRecord
			if failed(err) || json.Unmarshal(data, &of) == nil && !strings.HasPrefix(string(of.Resource), prefix) {
				continue
			}
			left = append(left, "what is kept of "+string(of.Resource))
		}
	}
	for _, bucket := range children(tr.home() + "/slots") {
		for _, name := range children(tr.home() + "/slots/" + bucket) {
			if r, ok := unescape(name); ok && strings.HasPrefix(string(r), prefix) {
				walk(tr.slots(r))
			}
		}
	}
	if tr.curator {
		walk(tr.root + "/" + strings.TrimSuffix(prefix, "/"))
		return left
	}
	for _, bucket := range children(tr.locks()) {
		for _, name := range children(tr.locks() + "/" + bucket) {
			if r, ok := unescape(name); ok && strings.HasPrefix(string(r), prefix) {
				walk(tr.locks() + "/" + bucket + "/" + name)
			}
		}
	}
	return left
}
