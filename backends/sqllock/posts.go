package sqllock

import (
	"context"
	"strconv"
	"strings"
)

// This file is about posts, which there are where Words.Gaps is set. An app may be frozen in
// a transaction behind a guard that has found no row. InnoDB then lets nobody insert between
// the rows before and behind the place of that row, in the index guard. In that index rows
// stand in the order of time, and new ones come last. So nobody inserts there as long as
// some row behind that place is older than what is inserted. Posts are rows for that:
//
//   - Who deletes rows of hold adds one, as of now.
//   - The keeper adds one to lock, at the floor, before it deletes rows below.
//   - A post goes when there is a younger one: in hold the keeper sees to that, and in lock
//     it is an idle row like others.
//
// On the rows of lock an old number goes without a post when the resource is granted again:
// the new number stands behind it.
//
// Who has read the time, and inserts a moment later than others, may come before such a row, and has to
// wait. After that, see Conflict, it is carried out once more, as of a later time.

// post is the name of the posts of hold, and begins those of lock. It is in no name of a resource.
const post = "\xff"

// addPosts sets what concerns posts.
func (q *statements) addPosts() {
	q.addPost = q.words(q.w.InsertNew("{hold} (name, id, lease, fence, since) VALUES (?, ?, '', 0, ?)"))
	q.posts = q.words("SELECT id, since FROM {hold} WHERE name=? LIMIT ?")
	q.floorPost = q.words(q.w.InsertNew("{lock} (name, fence) SELECT " + q.w.Join("?", "m.value") + ", m.value-1 FROM {meta} m WHERE m.name='floor'"))
}

// moving is moveHolds with the time of the grants.
func (q *statements) moving(at int64) listed {
	return listed(strings.Replace(string(q.moveHolds), "{at}", strconv.FormatInt(at, 10), 1))
}

// writingPost adds a post where rows of hold are deleted.
func (b *Backend) writingPost(s *state) []Statement {
	if !b.sql.w.Gaps || len(s.goneHolds) == 0 {
		return nil
	}
	return []Statement{{SQL: b.sql.addPost, Args: []any{[]byte(post), []byte(s.goneHolds[0]), s.now}}}
}

// raisingFloor raises the floor and reads it.
func (b *Backend) raisingFloor() []Statement {
	q := b.sql
	batch := []Statement{{SQL: q.raiseFloor, Args: []any{idleRow.Microseconds()}}}
	if q.w.Gaps {
		batch = append(batch, Statement{SQL: q.floorPost, Args: []any{[]byte(post)}})
	}
	return append(batch, Statement{SQL: q.floor})
}

// reapPosts deletes the posts of hold but the last one. Another server may lack that one: so all of it is done on one connection.
func (r *reaper) reapPosts(ctx context.Context) error {
	b, q := r.l.b, r.l.b.sql
	c, err := b.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for range reapSteps {
		res, err := c.Do(ctx, "reap", Statement{SQL: q.posts, Args: []any{[]byte(post), reapStep}})
		if err != nil || len(res[0].Rows) < 2 {
			return err
		}
		rows, last := res[0].Rows, 0
		for i, row := range rows {
			if row.Int(1) > rows[last].Int(1) {
				last = i
			}
		}
		var old [][]byte
		for i, row := range rows {
			if i != last {
				old = append(old, []byte(row.Text(0)))
			}
		}
		if _, err := c.Do(ctx, "reap", q.delHolds.with([]byte(post), old, nil, 0)); err != nil {
			return err
		}
		if len(rows) < reapStep {
			return nil
		}
	}
	return nil
}
