package io.github.locksidecar;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/** What README.md and examples/java/README.md show, so that it is compiled. */
final class DocsSamples {
  private DocsSamples() {}

  interface Store {
    void write(String order, long fence);
  }

  static void byTheHold(LockSidecar sidecar, Store store, String order) throws InterruptedException {
try (Hold hold = sidecar.lock("orders/42").acquire(Duration.ofSeconds(5))) {  // or as a j.u.c.locks.Lock
    store.write(order, hold.fence());
}                                                        // LockLostException
  }

  static void both(Store store, String order) throws InterruptedException {
LockSidecar sidecar = LockSidecar.connect();   // one for the whole app

try (Hold hold = sidecar.lock("orders/42").acquire(Duration.ofSeconds(5))) {
    Thread worker = Thread.currentThread();
    hold.onLost(why -> worker.interrupt());    // called on a thread of its own
    store.write(order, hold.fence());          // the store refuses a smaller fence
}                                              // LockLostException if it was lost meanwhile

ReadWriteLock loan = sidecar.readWriteLock("loans/7").reentrant();
loan.readLock().lock();
try {
    System.out.println("read the loan");
} finally {
    loan.readLock().unlock();
}
  }

  static void reentrant(LockSidecar sidecar) {
Lock lock = sidecar.lock("orders/42").reentrant();               // as ReentrantLock
ReadWriteLock loan = sidecar.readWriteLock("loans/7").reentrant(); // as ReentrantReadWriteLock
    lock.lock();
    loan.readLock().lock();
  }

  interface Bank {
    String pay(String key, boolean ask);
  }

  static void more(LockSidecar sidecar, Store store, Bank bank) throws InterruptedException {
try (Hold both = sidecar.lock(List.of("accounts/7", "accounts/12")).acquire()) {  // all or none, and no deadlock
    both.parts().forEach(part -> store.write(part.resource(), part.fence()));
}

try (Hold permit = sidecar.lock("exports").withLimit(4).acquire()) {              // one of four
    System.out.println("export number " + permit.slot().getAsInt());
}

try (Hold attempt = sidecar.once("withdrawals/4711").acquire()) {                 // done once
    boolean ask = attempt.previous().filter(p -> p.state() == Outcome.State.UNKNOWN).isPresent();
    attempt.succeeded(bank.pay("4711", ask));                                     // else the outcome is UNKNOWN
} catch (AlreadyDoneException e) {
    System.out.println("paid before: " + e.metadata().get("note"));
}
  }

  interface Queue {
    void send(String handle);
  }

  static void detached(LockSidecar sidecar, Store store, Queue queue, String handle) throws InterruptedException {
try (Hold hold = sidecar.lock("exports/7").detachable().acquire()) {              // taken here
    queue.send(hold.detach(Duration.ofHours(1)).handle());
}                                                                                 // it stays locked
try (Hold hold = sidecar.attach(handle)) {                                        // released there
    store.write("exports/7", hold.fence());
}
  }

  static void guard(Hold hold, Connection connection) throws SQLException {
if (hold.guard().orElseThrow().allowsCommit(connection)) connection.commit();
else connection.rollback();
  }
}
