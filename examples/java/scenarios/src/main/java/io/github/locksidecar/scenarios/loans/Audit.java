package io.github.locksidecar.scenarios.loans;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Does all the work over again, on paper and one after the other, and compares.
 *
 * @param repayments how many were committed
 * @param transfers how many were committed
 * @param sideBySide the largest number of transfers of one loan that ran at the same moment
 * @param problems what is not as it should be
 */
record Audit(int repayments, int transfers, int sideBySide, List<String> problems) {
  private record Work(
      boolean repayment, int loan, int debt, int seller, int buyer, long started, long ended) {}

  static Audit of(Database db) throws SQLException {
    List<Work> all = new ArrayList<>();
    Map<String, Long> is = new TreeMap<>();
    try (Connection c = db.connect();
        Statement s = c.createStatement()) {
      try (ResultSet r =
          s.executeQuery(db.sql("SELECT kind, loan, debt, seller, buyer, started, ended FROM {work} ORDER BY ended"))) {
        while (r.next()) {
          boolean repayment = r.getString(1).equals("repayment");
          all.add(
              new Work(repayment, r.getInt(2), r.getInt(3), r.getInt(4), r.getInt(5), r.getLong(6), r.getLong(7)));
        }
      }
      read(is, s, db.sql("SELECT CONCAT('outstanding of loan ', id), outstanding FROM {loan}"));
      read(is, s, db.sql("SELECT CONCAT('amount of debt ', id), amount FROM {debt}"));
      read(is, s, db.sql("SELECT CONCAT('owner of debt ', id), investor FROM {debt}"));
      read(is, s, db.sql("SELECT CONCAT('balance of investor ', investor), balance FROM {account}"));
    }
    List<String> problems = new ArrayList<>();
    Map<String, Long> should = redo(all, problems);
    is.forEach(
        (what, value) -> {
          if (!should.get(what).equals(value)) {
            problems.add(what + " is " + value + " and should be " + should.get(what));
          }
        });
    int repayments = (int) all.stream().filter(Work::repayment).count();
    return new Audit(repayments, all.size() - repayments, overlaps(all, problems), problems);
  }

  private static void read(Map<String, Long> into, Statement s, String query) throws SQLException {
    try (ResultSet r = s.executeQuery(query)) {
      while (r.next()) {
        into.put(r.getString(1), r.getLong(2));
      }
    }
  }

  /** What the tables should say after all that. */
  private static Map<String, Long> redo(List<Work> all, List<String> problems) {
    Map<String, Long> t = new HashMap<>();
    for (int i = 1; i <= Database.INVESTORS; i++) {
      t.put("balance of investor " + i, 0L);
    }
    for (int l = 1; l <= Database.LOANS; l++) {
      t.put("outstanding of loan " + l, Database.DEBTS * Database.DEBT);
      for (int d = 0; d < Database.DEBTS; d++) {
        t.put("amount of debt " + (l * 100 + d), Database.DEBT);
        t.put("owner of debt " + (l * 100 + d), 1L + d % Database.INVESTORS);
      }
    }
    for (Work w : all) {
      if (!w.repayment) {
        long price = t.get("amount of debt " + w.debt);
        if (t.put("owner of debt " + w.debt, (long) w.buyer) != w.seller) {
          problems.add("debt " + w.debt + " was sold by investor " + w.seller + ", who did not own it");
        }
        t.merge("balance of investor " + w.seller, price, Long::sum);
        t.merge("balance of investor " + w.buyer, -price, Long::sum);
        continue;
      }
      long of = t.get("outstanding of loan " + w.loan);
      long left = Math.min(Database.REPAYMENT, of);
      t.put("outstanding of loan " + w.loan, of - left);
      for (int d = w.loan * 100; d < w.loan * 100 + Database.DEBTS; d++) {
        long amount = t.get("amount of debt " + d);
        long share = of == 0 ? 0 : left * amount / of;
        left -= share;
        of -= amount;
        t.put("amount of debt " + d, amount - share);
        t.merge("balance of investor " + t.get("owner of debt " + d), share, Long::sum);
      }
    }
    return t;
  }

  /** Looks at what ran at the same moment. */
  private static int overlaps(List<Work> all, List<String> problems) {
    int most = 0;
    int wrong = 0;
    for (Work a : all) {
      int beside = 1;
      for (Work b : all) {
        if (a == b || a.loan != b.loan || b.started > a.started || b.ended < a.started) {
          continue; // b did not run when a began
        }
        if (a.repayment || b.repayment) {
          wrong++;
        } else {
          beside++;
        }
      }
      most = Math.max(most, beside);
    }
    if (wrong > 0) {
      problems.add("work on a loan began beside a repayment of it, or the other way round: " + wrong + " times");
    }
    return most;
  }
}
