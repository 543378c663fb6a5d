package io.github.locksidecar.scenarios.loans;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.SidecarException;
import java.sql.SQLException;
import java.sql.SQLTransactionRollbackException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;

/**
 * One process of the platform, beside its sidecar ($LOCKSIDECAR_SOCKET). It works until its input
 * ends, or, as {@code once}, makes one repayment. What happens it says on its output, a line each.
 */
final class Worker {
  private static final int THREADS = 2;

  private final LoanService service;
  private volatile boolean stop;

  private Worker(LoanService service) {
    this.service = service;
  }

  /** Arguments: JDBC URL, table prefix, "guarded" or "unguarded", "once" or "work". */
  public static void main(String[] args) throws Exception {
    Database db = new Database(args[0], args[1]);
    try (LockSidecar sidecar = LockSidecar.builder().name("loans").connect()) {
      Worker w = new Worker(new LoanService(sidecar, db, args[2].equals("guarded")));
      if (args[3].equals("once")) {
        w.once();
      } else {
        w.work();
      }
    }
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  /** One repayment whose bank takes its time. */
  private void once() throws Exception {
    boolean committed = false;
    try {
      committed =
          service.repay(
              1,
              () -> {
                say("at the bank");
                Thread.sleep(500);
                say("back from the bank");
              });
    } catch (SQLTransactionRollbackException e) {
      say("deadlock: " + e.getMessage());
    }
    say(committed ? "committed" : "rolled back");
  }

  private void work() throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(THREADS);
    List<Future<?>> all = new ArrayList<>();
    for (int i = 0; i < THREADS; i++) {
      all.add(
          threads.submit(
              () -> {
                while (!stop) {
                  something();
                }
                return null;
              }));
    }
    say("at work");
    while (System.in.read() >= 0) {
      // until the end of the input
    }
    stop = true;
    threads.shutdown();
    for (Future<?> f : all) {
      f.get();
    }
    say("done");
  }

  private void something() throws SQLException, InterruptedException {
    ThreadLocalRandom random = ThreadLocalRandom.current();
    int loan = 1 + random.nextInt(Database.LOANS);
    LoanService.Outside outside = () -> Thread.sleep(random.nextInt(5, 20));
    try {
      if (random.nextInt(10) == 0) {
        service.repay(loan, outside);
      } else {
        int debt = loan * 100 + random.nextInt(Database.DEBTS);
        service.transfer(loan, debt, 1 + random.nextInt(Database.INVESTORS), outside);
      }
    } catch (SQLTransactionRollbackException e) {
      say("deadlock: " + e.getMessage()); // all was rolled back: something else is done next
    } catch (SidecarException e) {
      say("failed: " + e.getMessage());
    }
  }
}
