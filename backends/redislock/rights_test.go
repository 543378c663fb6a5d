package redislock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The rights that the documentation gives to the sidecar are enough.
func TestDocumentedRights(t *testing.T) { again(t, testDocumentedRights) }

func testDocumentedRights(t testing.TB) {
	page, err := os.ReadFile("../../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	var acl []any
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "ACL SETUSER locksidecar ") {
			for _, w := range strings.Fields(strings.Replace(line, ">PASSWORD", ">secret", 1)) {
				acl = append(acl, w)
			}
		}
	}
	if acl == nil {
		t.Fatal("the page has no ACL SETUSER")
	}
	s := testengine.New(t, testengine.Redis)
	addr := strings.TrimPrefix(s.URL(), "redis://")
	root := plain(t, addr)
	if err := root.Do(t.Context(), acl...).Err(); err != nil {
		t.Fatalf("%v: %v", acl, err)
	}
	url := "redis://locksidecar:secret@" + addr + noGrace
	b, l := sidecar(t, url, 2*time.Second)
	swallow(l)
	_, mortal := sidecar(t, url, time.Second)
	hold(t, mortal, "dead")
	_, other := sidecar(t, url, 30*time.Second)
	swallow(other)
	ctx := t.Context()
	g := hold(t, other, "r")
	if _, err := try(t, l, "r"); err == nil {
		t.Error("broken law: granted twice")
	}
	waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := l.Acquire(waiting, exclusive("r")); err == nil {
		t.Error("broken law: granted twice")
	}
	for what, err := range map[string]error{
		"Downgrade":    other.Downgrade(ctx, "r", g.ID),
		"Heartbeat":    beat(ctx, other),
		"ForceRelease": b.ForceRelease(ctx, "r", g.ID, time.Millisecond),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := b.List(ctx, "", lock.Page{Limit: 10}); err != nil {
		t.Errorf("List: %v", err)
	}
	brief, kept := lock.Record{Version: "v", Value: []byte("brief")}, lock.Record{Version: "w", Value: []byte("kept")}
	_, list := b.ListRecords(ctx, "", lock.Page{Limit: 10})
	_, read := b.ReadRecord(ctx, "r")
	for what, err := range map[string]error{
		"a first write": b.WriteRecord(ctx, "brief", "", brief, lock.MinKeep),
		"another write": errors.Join(b.WriteRecord(ctx, "r", "", brief, time.Hour), b.WriteRecord(ctx, "r", "v", kept, time.Hour)),
		"ReadRecord":    read,
		"ListRecords":   list,
		"DeleteRecord":  b.DeleteRecord(ctx, "r", "w"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	eventually(t, "the record that is over is forgotten", func() error {
		if err := beat(ctx, other); err != nil {
			return err
		}
		if n := root.ZCard(ctx, b.keys.buckets[0].recordEnds).Val(); n != 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
	eventually(t, "the dead sidecar's hold is cleared away", func() error {
		if err := beat(ctx, other); err != nil {
			return err
		}
		if root.Exists(ctx, b.keys.buckets[0].mine+string(mortal.ID())).Val() != 0 {
			return errors.New("it is there")
		}
		return nil
	})
	log := root.Do(ctx, "acl", "log").Val()
	if entries, _ := log.([]any); len(entries) > 0 {
		t.Errorf("refused: %v", entries)
	}
}
