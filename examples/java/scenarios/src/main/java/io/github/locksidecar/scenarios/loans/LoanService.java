package io.github.locksidecar.scenarios.loans;

import io.github.locksidecar.Hold;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.SidecarReadWriteLock;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The business of the platform. Each transaction has a part outside of the database (the bank, the
 * register of debts), so it cannot be protected by row locks alone: nobody would keep them that
 * long. The distributed lock keeps others out, and the guard makes sure of it at the commit.
 */
final class LoanService {
  /** What is done outside of the database. */
  interface Outside {
    void call() throws InterruptedException;
  }

  private record Debt(int id, int investor, long amount) {}

  private final LockSidecar sidecar;
  private final Database db;
  private final boolean guarded;

  /**
   * A service.
   *
   * @param guarded false only to show what goes wrong without the guard
   */
  LoanService(LockSidecar sidecar, Database db, boolean guarded) {
    this.sidecar = sidecar;
    this.db = db;
    this.guarded = guarded;
  }

  /**
   * A repayment is shared out among the owners of the loan's debts. It takes the write lock of the
   * loan: owners and amounts must not change between the reading and the paying out.
   *
   * @return false: rolled back, the lock was no longer ours
   */
  boolean repay(int loan, Outside bank) throws SQLException, InterruptedException {
    boolean committed = false;
    try (Hold hold = lockOf(loan).writeLock().acquire();
        Connection c = begin()) {
      long started = System.nanoTime();
      long outstanding = one(c, "SELECT outstanding FROM {loan} WHERE id = ?", loan);
      List<Debt> debts = debts(c, loan);
      hold.check(); // cheap, and enough nearly always; what comes after it only the guard sees
      bank.call();
      long left = Math.min(Database.REPAYMENT, outstanding);
      set(c, "UPDATE {loan} SET outstanding = ? WHERE id = ?", outstanding - left, loan);
      long of = outstanding;
      Map<Integer, Long> shares = new TreeMap<>(); // by investor, in the order in which all lock accounts
      for (Debt d : debts) {
        long share = of == 0 ? 0 : left * d.amount / of; // the last one gets what is left
        left -= share;
        of -= d.amount;
        set(c, "UPDATE {debt} SET amount = ? WHERE id = ?", d.amount - share, d.id);
        shares.merge(d.investor, share, Long::sum);
      }
      for (Map.Entry<Integer, Long> s : shares.entrySet()) {
        set(c, "UPDATE {account} SET balance = balance + ? WHERE investor = ?", s.getValue(), s.getKey());
      }
      note(c, "repayment", loan, 0, 0, 0, hold, started);
      committed = end(c, hold);
    } catch (LockLostException e) {
      // Thrown before the commit: that rolls back. By the release: the guard has decided already.
    }
    return committed;
  }

  /**
   * A transfer sells one debt to another investor for what is still owed. It takes the read lock of
   * the loan, so that transfers run side by side and never beside a repayment; and the lock of the
   * debt, which can be sold once at a time.
   *
   * @return false: rolled back, a lock was no longer ours
   */
  boolean transfer(int loan, int debt, int buyer, Outside register) throws SQLException, InterruptedException {
    boolean committed = false;
    try (Hold hold = lockOf(loan).readLock().acquire();
        Hold own = sidecar.lock("debts/" + debt).acquire();
        Connection c = begin()) {
      long started = System.nanoTime();
      long price = one(c, "SELECT amount FROM {debt} WHERE id = ?", debt);
      int seller = (int) one(c, "SELECT investor FROM {debt} WHERE id = ?", debt);
      register.call();
      set(c, "UPDATE {debt} SET investor = ? WHERE id = ?", buyer, debt);
      // In the order of their numbers, so that two transactions do not wait for each other.
      long low = seller < buyer ? price : -price;
      set(c, "UPDATE {account} SET balance = balance + ? WHERE investor = ?", low, Math.min(seller, buyer));
      set(c, "UPDATE {account} SET balance = balance + ? WHERE investor = ?", -low, Math.max(seller, buyer));
      note(c, "transfer", loan, debt, seller, buyer, hold, started);
      committed = end(c, hold, own);
    } catch (LockLostException e) {
      // as above
    }
    return committed;
  }

  private SidecarReadWriteLock lockOf(int loan) {
    return sidecar.readWriteLock("loans/" + loan);
  }

  private Connection begin() throws SQLException {
    Connection c = db.connect();
    c.setAutoCommit(false);
    return c;
  }

  /**
   * Ends every business transaction: commits if the locks are still ours. Between the guard's
   * answer and the commit nobody else gets them, however long this process sleeps.
   */
  private boolean end(Connection c, Hold... holds) throws SQLException {
    for (Hold hold : holds) {
      if (guarded && !hold.guard().orElseThrow().allowsCommit(c)) {
        c.rollback();
        return false;
      }
    }
    c.commit(); // before the release, which waits for it
    return true;
  }

  // --- statements

  private long one(Connection c, String query, int id) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(db.sql(query))) {
      s.setInt(1, id);
      try (ResultSet r = s.executeQuery()) {
        r.next();
        return r.getLong(1);
      }
    }
  }

  private List<Debt> debts(Connection c, int loan) throws SQLException {
    List<Debt> all = new ArrayList<>();
    String query = "SELECT id, investor, amount FROM {debt} WHERE loan = ? ORDER BY id";
    try (PreparedStatement s = c.prepareStatement(db.sql(query))) {
      s.setInt(1, loan);
      try (ResultSet r = s.executeQuery()) {
        while (r.next()) {
          all.add(new Debt(r.getInt(1), r.getInt(2), r.getLong(3)));
        }
      }
    }
    return all;
  }

  private void set(Connection c, String statement, long value, int id) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(db.sql(statement))) {
      s.setLong(1, value);
      s.setInt(2, id);
      s.executeUpdate();
    }
  }

  private void note(
      Connection c, String kind, int loan, int debt, int seller, int buyer, Hold hold, long started)
      throws SQLException {
    String statement =
        "INSERT INTO {work} (kind, loan, debt, seller, buyer, fence, started, ended)"
            + " VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    try (PreparedStatement s = c.prepareStatement(db.sql(statement))) {
      s.setString(1, kind);
      s.setInt(2, loan);
      s.setInt(3, debt);
      s.setInt(4, seller);
      s.setInt(5, buyer);
      s.setLong(6, hold.fence());
      s.setLong(7, started);
      s.setLong(8, System.nanoTime()); // one clock for all processes of the machine
      s.executeUpdate();
    }
  }
}
