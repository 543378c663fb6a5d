package tables

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/backends/backendtest"
)

var _ backendtest.Insider = (*harness)(nil)

// Leftovers makes the harness a backendtest.Insider. A row of the table lock stays
// for its fence, one of the table gone for a while.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	t.Helper()
	b := openAt(t, with(h.server.URL(), "timeout=3s"))
	defer func() { _ = b.Close() }()
	rows := replaceNames(`
SELECT 'lock', name FROM {lock} WHERE name LIKE CONCAT(?, '%') AND (x_id IS NOT NULL OR readers > 0 OR waiters > 0)
UNION ALL SELECT 'hold', name FROM {hold} WHERE name LIKE CONCAT(?, '%')
UNION ALL SELECT 'queue', name FROM {queue} WHERE name LIKE CONCAT(?, '%')
UNION ALL SELECT 'news', name FROM {news} WHERE name LIKE CONCAT(?, '%')
UNION ALL SELECT 'gone', name FROM {gone} WHERE name LIKE CONCAT(?, '%') AND at < UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE`, b.cfg.Table)
	err := b.query(context.Background(), "test", func(_ int, rows *sql.Rows) error {
		var table string
		var name []byte
		err := rows.Scan(&table, &name)
		left = append(left, fmt.Sprintf("row %q of %s", name, table))
		return err
	}, rows, prefix, prefix, prefix, prefix, prefix)
	if err != nil {
		left = append(left, "what nobody can see: "+err.Error())
	}
	return left
}
