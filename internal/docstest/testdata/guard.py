# A database whose guard changes as many rows as the first argument says.
import contextlib
import sys
import types

import locksidecar

locksidecar.Held.guard = property(lambda hold: types.SimpleNamespace(sql="UPDATE g SET n=? WHERE m=?", args=["1", "2"]))


class Connection:
    rowcount = int(sys.argv[1])

    def cursor(self):
        return contextlib.nullcontext(self)

    def transaction(self):
        return contextlib.nullcontext(self)

    def execute(self, sql, args=()):
        assert "?" not in sql and sql.count("%s") == len(args), sql
        return self

    def commit(self):
        pass

    def rollback(self):
        pass


connection = Connection()
