package testengine

import "testing"

// A fork knows what its origin knew, and goes its own way.
func TestForkMySQL(t *testing.T) {
	t.Parallel()
	origin(t, MariaDB)
	first := New(t, MariaDB)
	a := newSQLClient(t, first.URL())
	put := func(c *sqlClient, key string) {
		t.Helper()
		if err := c.put(within(t, long), key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	knows := func(c *sqlClient, key string, want bool) {
		t.Helper()
		if v, err := c.get(within(t, long), key); err != nil || (v == "x") != want {
			t.Errorf("%s is %q, %v; want that it is there: %t", key, v, err, want)
		}
	}
	put(a, "before")
	fork := ForkMySQL(t, first, MariaDB)
	b := newSQLClient(t, fork.URL())
	put(a, "after")
	put(b, "own")
	knows(b, "before", true)
	knows(b, "after", false)
	knows(a, "before", true)
	knows(a, "own", false)
	var servers [2]string
	for i, c := range []*sqlClient{a, b} {
		if err := c.db.QueryRowContext(within(t, long), "SELECT @@datadir").Scan(&servers[i]); err != nil {
			t.Fatal(err)
		}
	}
	if servers[0] == servers[1] {
		t.Errorf("both are %s", servers[0])
	}
}
