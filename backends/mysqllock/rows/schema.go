package rows

import (
	"context"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
)

// Schema gives the statements that create what is needed. They change nothing
// where it is there.
func Schema(cfg *mydb.Config) []string {
	return []string{
		// What is locked. A row is made once and stays: a lock on a row that is not
		// there would be one on the gap, which locks out others' names.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n"+
			"  name VARBINARY(512) NOT NULL PRIMARY KEY\n"+
			") ENGINE=InnoDB", cfg.Table("row")),
		// The last fence of each resource.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n"+
			"  name VARBINARY(512) NOT NULL PRIMARY KEY,\n"+
			"  fence BIGINT NOT NULL\n"+
			") ENGINE=InnoDB", cfg.Table("row_fence")),
		// Who holds and who waits, as far as the server has the named lock of the
		// link; without it the row means nothing. mode is X or S; fence is 0 while
		// it waits; since and revoke_until are for people, in UTC.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n"+
			"  id VARBINARY(64) NOT NULL PRIMARY KEY,\n"+
			"  name VARBINARY(512) NOT NULL,\n"+
			"  lease VARBINARY(64) NOT NULL,\n"+
			"  link VARBINARY(64) NOT NULL,\n"+
			"  mode BINARY(1) NOT NULL,\n"+
			"  fence BIGINT NOT NULL,\n"+
			"  since DATETIME(6) NOT NULL,\n"+
			"  revoke_until DATETIME(6) NULL,\n"+
			"  sidecar BLOB NOT NULL,\n"+
			"  owner MEDIUMBLOB NOT NULL,\n"+
			"  KEY name (name),\n"+
			"  KEY lease (lease)\n"+
			") ENGINE=InnoDB", cfg.Table("row_hold")),
	}
}

// prepare makes sure, once, that the tables are there.
func (b *Backend) prepare(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready {
		return nil
	}
	look := func() error {
		return b.pool.Query(ctx, "check tables", scanNothing, b.sql.look)
	}
	err := look()
	if mydb.Missing(err) && b.cfg.Migrate {
		if _, err := b.pool.Exec(ctx, "create tables", strings.Join(Schema(&b.cfg), "; ")); err != nil {
			return mydb.Unavailable("create tables", err)
		}
		err = look()
	}
	if err != nil {
		return mydb.Unavailable("check tables", err)
	}
	b.ready = true
	return nil
}
