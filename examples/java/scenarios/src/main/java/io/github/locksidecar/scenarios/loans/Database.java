package io.github.locksidecar.scenarios.loans;

import java.net.URI;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.StringJoiner;

/**
 * The loan platform's tables, in the same database as the locks. Loans are divided into debts, each
 * of which an investor owns.
 *
 * @param jdbc where it is
 * @param prefix of all table names, so that several platforms have room in one database
 */
record Database(String jdbc, String prefix) {
  static final int LOANS = 2;
  static final int DEBTS = 6; // of each loan
  static final int INVESTORS = 5;
  static final long DEBT = 1_000_000;
  static final long REPAYMENT = 60_000;

  /** The database of a store URL, such as {@code mysql://user:pass@host:3306/db}. */
  static Database of(String store, String prefix) {
    URI u = URI.create(store);
    if (!"mysql".equals(u.getScheme()) && !"mariadb".equals(u.getScheme())) {
      throw new IllegalArgumentException("the loan platform needs a MySQL or MariaDB store, not " + u.getScheme());
    }
    StringJoiner options = new StringJoiner("&", "?", "");
    options.add("allowPublicKeyRetrieval=true");
    if (u.getRawUserInfo() != null) {
      String[] user = u.getRawUserInfo().split(":", 2);
      options.add("user=" + recode(user[0]));
      if (user.length == 2) {
        options.add("password=" + recode(user[1]));
      }
    }
    int port = u.getPort() < 0 ? 3306 : u.getPort();
    return new Database("jdbc:mariadb://" + u.getHost() + ":" + port + u.getRawPath() + options, prefix);
  }

  private static String recode(String s) {
    return URLEncoder.encode(URLDecoder.decode(s, StandardCharsets.UTF_8), StandardCharsets.UTF_8);
  }

  Connection connect() throws SQLException {
    Connection c = DriverManager.getConnection(jdbc);
    c.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ); // as the servers' default
    return c;
  }

  /** Puts the prefix before the names of tables, which are written as {@code {loan}}. */
  String sql(String statement) {
    return statement.replaceAll("\\{(\\w+)}", prefix + "$1");
  }

  void create() throws SQLException {
    execute(
        "CREATE TABLE {loan} (id INT PRIMARY KEY, outstanding BIGINT NOT NULL) ENGINE=InnoDB",
        "CREATE TABLE {debt} (id INT PRIMARY KEY, loan INT NOT NULL, investor INT NOT NULL,"
            + " amount BIGINT NOT NULL, KEY (loan)) ENGINE=InnoDB",
        "CREATE TABLE {account} (investor INT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE=InnoDB",
        // What was done, written in the same transaction. For transfers: which debt, from whom, to whom.
        "CREATE TABLE {work} (id BIGINT AUTO_INCREMENT PRIMARY KEY, kind VARCHAR(10) NOT NULL,"
            + " loan INT NOT NULL, debt INT NOT NULL, seller INT NOT NULL, buyer INT NOT NULL,"
            + " fence BIGINT NOT NULL, started BIGINT NOT NULL,"
            + " ended BIGINT NOT NULL) ENGINE=InnoDB");
    for (int i = 1; i <= INVESTORS; i++) {
      execute("INSERT INTO {account} VALUES (" + i + ", 0)");
    }
    for (int l = 1; l <= LOANS; l++) {
      execute("INSERT INTO {loan} VALUES (" + l + ", " + DEBTS * DEBT + ")");
      for (int d = 0; d < DEBTS; d++) {
        execute("INSERT INTO {debt} VALUES (" + (l * 100 + d) + ", " + l + ", " + (1 + d % INVESTORS) + ", " + DEBT + ")");
      }
    }
  }

  void drop() throws SQLException {
    execute("DROP TABLE IF EXISTS {loan}, {debt}, {account}, {work}");
  }

  private void execute(String... statements) throws SQLException {
    try (Connection c = connect();
        Statement s = c.createStatement()) {
      for (String statement : statements) {
        s.execute(sql(statement));
      }
    }
  }

  /** One number from the tables. */
  long number(String query) throws SQLException {
    try (Connection c = connect();
        Statement s = c.createStatement();
        ResultSet r = s.executeQuery(sql(query))) {
      r.next();
      return r.getLong(1);
    }
  }
}
