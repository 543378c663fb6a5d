package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Which threads run what depends on a future. */
class FuturesTest {
  static TestSidecar sidecar;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start();
  }

  @AfterAll
  static void stop() {
    sidecar.close();
  }

  static LockSidecar.Builder builder() {
    return LockSidecar.builder().socket(sidecar.socket);
  }

  /** What is asked for while the lock is held: dependents are there before the answer. */
  static <T> T whileHeld(LockSidecar locks, Supplier<T> asks) throws InterruptedException {
    try (Hold hold = locks.lock("r").acquire()) {
      return asks.get();
    }
  }

  /** Dependents that block share a few threads; locks and news of losses do not wait for them. */
  @Test
  void blockingDependentsMakeFewThreads() throws Exception {
    Set<Thread> used = ConcurrentHashMap.newKeySet();
    CountDownLatch enough = new CountDownLatch(1);
    try (LockSidecar locks = builder().connect().open()) {
      Function<Hold, CompletableFuture<Void>> blocks =
          hold -> {
            used.add(Thread.currentThread());
            LossTest.uninterruptibly(enough);
            return hold.closeAsync();
          };
      SidecarLock read = locks.readWriteLock("r").readLock();
      List<CompletableFuture<Void>> all =
          whileHeld(
              locks,
              () -> IntStream.range(0, 900).mapToObj(i -> read.acquireAsync().thenCompose(blocks)).toList());
      TestSidecar.eventually("all are held", () -> sidecar.holds() == 900);
      Hold other = locks.lock("other").acquire(); // by this very thread
      CompletableFuture<LockLostException> loss = LossTest.lossOf(other);
      sidecar.force("other", "0s");
      assertEquals("FORCED", loss.get(20, SECONDS).lostReason());
      enough.countDown();
      for (CompletableFuture<Void> one : all) {
        one.get(60, SECONDS);
      }
    }
    int most = Math.max(4, 2 * Runtime.getRuntime().availableProcessors());
    assertTrue(used.size() <= most, used.size() + " threads, and not " + most);
  }

  @Test
  void anExecutorOfTheApp() throws Exception {
    ExecutorService mine = Executors.newSingleThreadExecutor(r -> new Thread(r, "mine"));
    try (LockSidecar locks = builder().executor(mine).connect()) {
      assertEquals("mine", whileHeld(locks, () -> locks.lock("r").acquireAsync().thenApply(FuturesTest::close)).get(20, SECONDS));
      try (Hold hold = locks.lock("r").acquire()) {
        CompletableFuture<String> late =
            locks.lock("r").acquireAsync(Duration.ofSeconds(2)).handle((h, e) -> Thread.currentThread().getName());
        assertEquals("mine", late.get(20, SECONDS));
      }
      mine.shutdown();
      assertTrue(mine.awaitTermination(20, SECONDS));
      String after = whileHeld(locks, () -> locks.lock("r").acquireAsync().thenApply(FuturesTest::close)).get(20, SECONDS);
      assertTrue(after.startsWith("locksidecar-future"), "nobody waits for ever: " + after);
    }
  }

  static String close(Hold hold) {
    hold.close();
    return Thread.currentThread().getName();
  }

  /** An executor that runs at once what it is given does not hold up the thread that reads. */
  @Test
  void anExecutorThatRunsAtOnce() throws Exception {
    CountDownLatch enough = new CountDownLatch(1);
    try (LockSidecar locks = builder().executor(Runnable::run).connect().open()) {
      // Not answered yet when the dependent is added: the lock is held.
      Hold first = locks.lock("r").acquire();
      CompletableFuture<Void> blocks =
          locks.lock("r").acquireAsync().thenAccept(hold -> LossTest.uninterruptibly(enough));
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
      first.close();
      TestSidecar.eventually("granted", () -> sidecar.waiters() == 0 && sidecar.lock("r").list("holders").size() == 1);
      locks.lock("s").acquire(Duration.ofSeconds(20)).close();
      enough.countDown();
      blocks.get(20, SECONDS);
    }
  }
}
