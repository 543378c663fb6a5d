package io.github.locksidecar.scenarios.loans;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/**
 * A loan platform of several processes, each beside its own sidecar, on one MySQL or MariaDB, which
 * has the platform's tables and the locks. Transfers of debts run side by side and never beside a
 * repayment of their loan. One process is paused in the middle of a repayment, with its sidecar and
 * for longer than its lease: others take over, and when it wakes up it must not commit.
 *
 * <pre>java -jar scenarios/target/scenarios.jar [--unguarded] mysql://USER:PASSWORD@HOST:PORT/DB</pre>
 */
public final class LoanPlatform {
  private static final int PODS = 3;
  private static final String TTL = "2s";

  private final boolean guarded;
  private final Database db;
  private final List<String> serve;

  /**
   * What came out.
   *
   * @param sleeper what the paused repayment said in the end
   * @param meanwhile how many repayments of the same loan were committed while it was paused
   */
  record Outcome(String sleeper, long meanwhile, Audit audit) {
    boolean sound() {
      return sleeper.equals("rolled back") && meanwhile > 0 && audit.sideBySide() > 1 && audit.problems().isEmpty();
    }
  }

  LoanPlatform(String store, boolean guarded) {
    String run = UUID.randomUUID().toString().substring(0, 8);
    this.guarded = guarded;
    this.db = Database.of(store, "loans_" + run + "_");
    this.serve =
        List.of(sidecar(), "serve", "--store", store, "--ttl", TTL, "--namespace", "loans-" + run, "--log-level", "error");
  }

  private static String sidecar() {
    String named = System.getenv("LOCKSIDECAR_BINARY");
    if (named != null && !named.isEmpty()) {
      return named;
    }
    for (Path dir = Path.of("").toAbsolutePath(); dir != null; dir = dir.getParent()) {
      Path built = dir.resolve("bin/locksidecar");
      if (Files.isExecutable(built)) {
        return built.toString();
      }
    }
    return "locksidecar"; // on the PATH
  }

  /** Runs it. Exit status 1: something is not as it should be. */
  public static void main(String[] args) throws Exception {
    List<String> rest = new ArrayList<>(List.of(args));
    boolean guarded = !rest.remove("--unguarded");
    if (rest.size() != 1) {
      System.err.println("usage: scenarios.jar [--unguarded] mysql://USER:PASSWORD@HOST:PORT/DB");
      System.exit(2);
    }
    Outcome o = new LoanPlatform(rest.get(0), guarded).run();
    System.out.println("the paused repayment:           " + o.sleeper());
    System.out.println("repayments in the meantime:     " + o.meanwhile());
    System.out.println("repayments in all:              " + o.audit().repayments());
    System.out.println("transfers:                      " + o.audit().transfers());
    System.out.println("transfers of a loan at a time:  up to " + o.audit().sideBySide());
    System.out.println("audit:                          " + (o.audit().problems().isEmpty() ? "all amounts are right" : "WRONG"));
    o.audit().problems().forEach(p -> System.out.println("  " + p));
    if (o.sound()) {
      System.out.println();
      System.out.println("A repayment slept past its lease beside its sidecar, and others repaid the same loan meanwhile.");
      System.out.println("Proven: its guard did not let it commit, and every amount and owner is what the work on paper gives.");
    }
    System.exit(o.sound() ? 0 : 1);
  }

  Outcome run() throws Exception {
    db.create();
    List<Pod> pods = new ArrayList<>();
    try (Pod sleeper = new Pod("sleeper", serve, worker("once"))) {
      sleeper.await("at the bank");
      sleeper.freeze();
      long before = repayments();
      for (int i = 1; i <= PODS; i++) {
        pods.add(new Pod("pod-" + i, serve, worker("work")));
      }
      for (Pod p : pods) {
        p.await("at work");
      }
      // Loan 1 stands still until the lease of the sleeper is over; loan 2 does not.
      long meanwhile = 0;
      for (int i = 0; meanwhile < 2 || !enough(Audit.of(db)); i++) {
        if (i == 600) {
          throw new IllegalStateException("nobody took the lock over, or too little was done");
        }
        Thread.sleep(100);
        meanwhile = repayments() - before;
      }
      sleeper.thaw();
      sleeper.await("back from the bank");
      String end = sleeper.await("committed", "rolled back");
      for (Pod p : pods) {
        p.finish();
      }
      return new Outcome(end, meanwhile, Audit.of(db));
    } finally {
      for (Pod p : pods) {
        p.close();
      }
      db.drop();
    }
  }

  /** Enough was done to tell. While work goes on, the problems of an audit mean nothing. */
  private static boolean enough(Audit a) {
    return a.transfers() >= 20 && a.sideBySide() > 1;
  }

  /** How many repayments of the sleeper's loan there are. */
  private long repayments() throws Exception {
    return db.number("SELECT COUNT(*) FROM {work} WHERE kind = 'repayment' AND loan = 1");
  }

  private List<String> worker(String what) {
    return List.of(
        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
        "-Xmx128m",
        "-XX:+UseSerialGC", // small, and started soon
        "-XX:TieredStopAtLevel=1",
        "-cp", System.getProperty("java.class.path"),
        Worker.class.getName(),
        db.jdbc(), db.prefix(), guarded ? "guarded" : "unguarded", what);
  }
}
