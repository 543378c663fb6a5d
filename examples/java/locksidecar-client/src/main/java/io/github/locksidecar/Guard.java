package io.github.locksidecar;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.List;

/**
 * One SQL statement for the app's own transaction, on the database that is also the sidecar's
 * store. From the statement until that transaction ends the store lets nobody in whom the lock
 * keeps out, not even when the lease is over. So an app that slept too long cannot commit over the
 * next holder.
 *
 * @param dialect {@code mysql}, {@code mariadb} or {@code postgresql}
 * @param sql the statement, with a {@code ?} for each argument
 * @param args the arguments, in ASCII
 */
public record Guard(String dialect, String sql, List<String> args) {
  /** A guard with a list of its own. */
  public Guard {
    args = List.copyOf(args);
  }

  /** Null: there is none. */
  static Guard read(Json j) {
    return j == null ? null : new Guard(j.text("dialect"), j.text("sql"), j.texts("args"));
  }

  /**
   * Tells whether the lock is still the app's. Ask just before the commit, in the same transaction:
   * {@code true}: commit; {@code false}: roll back. Commit before the release, which waits for the
   * transaction.
   *
   * @param transaction a connection with auto-commit off, to the server that is the store
   * @return whether the transaction may be committed
   * @throws IllegalStateException auto-commit is on: the answer would be worth nothing afterwards
   * @throws SQLException the database refused the statement, or could not be asked
   */
  public boolean allowsCommit(Connection transaction) throws SQLException {
    if (transaction.getAutoCommit()) {
      throw new IllegalStateException("the guard needs a transaction, and auto-commit is on");
    }
    try (PreparedStatement ask = transaction.prepareStatement(sql)) {
      for (int i = 0; i < args.size(); i++) {
        ask.setString(i + 1, args.get(i));
      }
      if (!ask.execute()) {
        return ask.getUpdateCount() == 1;
      }
      try (ResultSet row = ask.getResultSet()) {
        return row.next();
      }
    }
  }
}
