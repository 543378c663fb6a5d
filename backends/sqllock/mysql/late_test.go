package mysql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// An app is frozen in its transaction behind a guard: of a hold that is there, of one that is
// over, or of one whose row the keeper has deleted since. Other locks are granted, of names that
// had a row and of new ones, whatever the level of that transaction is.
func TestLateGuardLeavesOtherLocks(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"REPEATABLE-READ", "READ-COMMITTED"} {
		for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(3)} {
			for _, hold := range []string{"held", "over", "reaped"} {
				if hold == "reaped" && mode != lock.Exclusive { // its row goes with its release
					continue
				}
				t.Run(strings.Join([]string{level, mode.String(), hold}, " "), func(t *testing.T) {
					eachKind(t, func(t testing.TB, s testengine.Server) { lateGuard(t, s, level, mode, hold) })
				})
			}
		}
	}
}

func lateGuard(t testing.TB, s testengine.Server, level string, mode lock.Mode, hold string) {
	url := own(t, s, "late_")
	var ahead atomic.Int64
	b := openClock(t, url, func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) })
	l := leaseOf(t, b)
	keepAlive(t, t.Context(), l)
	_, other := sidecar(t, url, 10*time.Minute)
	keepAlive(t, t.Context(), other)
	others := func() {
		t.Helper()
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(2)} {
			for _, r := range []lock.Resource{"a", "m-", "z"} {
				q := exclusive(r)
				q.Mode = m
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err := other.Acquire(ctx, q)
				cancel()
				if err != nil {
					t.Fatalf("%s %s, beside the late guard: %v", m, r, err)
				}
				if err := other.Release(t.Context(), r, q.ID); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if hold != "reaped" { // else they are new
		others()
	}
	late := exclusive("m")
	late.Mode = mode
	g, err := l.Acquire(t.Context(), late)
	if err != nil {
		t.Fatal(err)
	}
	if hold != "held" {
		if err := l.Release(t.Context(), late.Resource, late.ID); err != nil {
			t.Fatal(err)
		}
	}
	if hold == "reaped" {
		reapRow(t, b, &ahead, g)
	}
	if hold != "held" {
		time.Sleep(2 * time.Second) // so that nothing is left in the index
	}
	params := "&transaction_isolation='" + level + "'"
	if strings.Contains(rows(t, b, "SELECT VERSION()")[0].Text(0), "MariaDB") {
		params = "&tx_isolation='" + level + "'"
	}
	frozen := newApp(t, b, params).begin(int(time.Now().UnixNano() % 1e9))
	if frozen.guarded(g.Guard) != (hold == "held") {
		t.Errorf("what the guard has found of a hold that is %s", hold)
	}
	others()
	others()
	frozen.rollBack()
}

// reapRow has the keeper delete the row of an exclusive hold that is over, as if the server's
// clock had been an hour behind when it was granted.
func reapRow(t testing.TB, b *store, ahead *atomic.Int64, g lock.Grant) {
	t.Helper()
	const hour = 3600000000
	execute(t, b, "UPDATE {lock} SET fence=fence-? WHERE name=?", int64(hour), []byte(g.Resource))
	if len(g.Guard.Args) > 2 {
		at, _ := strconv.ParseInt(g.Guard.Args[2], 10, 64)
		g.Guard.Args[2] = strconv.FormatInt(at-hour, 10)
	}
	eventually(t, "the floor is raised", func() error {
		if number(t, b, "SELECT value FROM {meta} WHERE name='floor'") == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	var jumped time.Duration
	eventually(t, "the row is deleted", func() error {
		if now := lock.BootTime(); now >= jumped+10*time.Second { // again where the floor was just raised: it counts from then
			jumped = now
			ahead.Add(int64(2 * time.Minute))
		}
		if number(t, b, "SELECT COUNT(*) FROM {lock} WHERE name=?", []byte(g.Resource)) > 0 {
			return errors.New("it is there")
		}
		return nil
	})
}

// Each release of a shared lock leaves a row, so that no guard that comes late finds its place at
// the end of the index. The keeper deletes all but the last.
func TestPostsAreDeleted(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, own(t, s, "posts_"), 30*time.Second)
		keepAlive(t, t.Context(), l)
		for range 20 {
			q := exclusive("r")
			q.Mode = lock.Shared
			if _, err := l.Acquire(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context(), q.Resource, q.ID); err != nil {
				t.Fatal(err)
			}
		}
		last := number(t, b, "SELECT MAX(since) FROM {hold}")
		eventually(t, "there is one", func() error {
			if n := number(t, b, "SELECT COUNT(*) FROM {hold}"); n != 1 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		if n := number(t, b, "SELECT since FROM {hold}"); n != last {
			t.Errorf("the post as of %d is left, and not the one as of %d", n, last)
		}
	})
}
