package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Each test has a sidecar of its own, and they run side by side. */
@Execution(ExecutionMode.CONCURRENT)
class LossTest {
  static final Duration TTL = Duration.ofSeconds(2);

  /** The loss, when it comes. */
  static CompletableFuture<LockLostException> lossOf(Hold h) {
    CompletableFuture<LockLostException> f = new CompletableFuture<>();
    h.onLost(f::complete);
    return f;
  }

  static void uninterruptibly(CountDownLatch latch) {
    try {
      assertTrue(latch.await(60, SECONDS));
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  @Test
  void killedSidecar() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start("--ttl", "2s");
        LockSidecar locks = sidecar.connect()) {
      SidecarLock lock = locks.lock("r");
      Hold hold = lock.acquire();
      locks.lock("t").lock();
      CompletableFuture<LockLostException> loss = lossOf(hold);
      CompletableFuture<Hold> waits = lock.acquireAsync();
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
      sidecar.kill();
      assertEquals("SIDECAR_GONE", loss.get(20, SECONDS).lostReason(), "long before its time is over");
      assertTrue(hold.isLost());
      assertEquals(Duration.ZERO, hold.validFor());
      assertThrows(LockLostException.class, hold::check);
      Throwable e = assertThrows(Exception.class, () -> waits.get(20, SECONDS)).getCause();
      assertEquals("SIDECAR_GONE", ((SidecarException) e).reason());
      e = assertThrows(SidecarUnavailableException.class, lock::tryAcquire);
      assertTrue(e.getMessage().contains("locksidecar serve"), e.getMessage());
      assertThrows(LockLostException.class, locks.lock("t")::lock, "it is not re-entered");

      sidecar.restart();
      try (Hold next = lock.acquire()) {
        next.check();
      }
      assertThrows(LockLostException.class, hold::close);
      assertTrue(hold.isLost() || hold.validFor().isZero(), "it does not come back");
      assertThrows(LockLostException.class, locks.lock("t")::unlock);
      locks.lock("t").lock();
      locks.lock("t").unlock();
    }
  }

  /** Nobody has used the connection since: the next acquire goes to the sidecar that is there by then. */
  @Test
  void killedWhileNothingWasAsked() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start("--ttl", "1s");
        LockSidecar locks = sidecar.connect()) {
      for (int i = 0; i < 5; i++) {
        locks.lock("r").acquire(Duration.ofSeconds(20)).close();
        sidecar.kill();
        SidecarException e = assertThrows(SidecarUnavailableException.class, () -> locks.lock("r").acquire());
        assertEquals("NO_SIDECAR", e.reason());
        sidecar.restart();
        locks.lock("r").acquireAsync(Duration.ofSeconds(20)).get(30, SECONDS).close();
        sidecar.kill();
        sidecar.restart();
      }
    }
  }

  /** The app gives up by its own clock, and does not change its mind. */
  @Test
  void frozenSidecar() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start("--ttl", "2s");
        LockSidecar locks = sidecar.connect()) {
      Hold hold = locks.lock("r").acquire();
      CompletableFuture<LockLostException> loss = lossOf(hold);
      long first = endOf(hold);
      TestSidecar.eventually("prolonged by news", () -> endOf(hold) > first + TTL.toNanos() / 4);
      sidecar.freeze();
      assertEquals("SIDECAR_SILENT", loss.get(20, SECONDS).lostReason());
      assertEquals(Duration.ZERO, hold.validFor());
      assertThrows(LockLostException.class, hold::close, "at once, though nobody answers");
      sidecar.thaw();
      try (Hold next = locks.lock("r").acquire(Duration.ofSeconds(20))) {
        assertTrue(next.fence() > hold.fence());
      }
      assertTrue(loss.isDone() && hold.validFor().isZero());
    }
  }

  /** When a hold ends without further news, by System.nanoTime. */
  static long endOf(Hold h) {
    return System.nanoTime() + h.validFor().toNanos();
  }

  /** Before the store can grant the lock to another sidecar, the app knows that it has lost it. */
  @Test
  void frozenSidecarAndTheNextHolder() throws Exception {
    String redis = System.getenv("LOCKSIDECAR_TEST_REDIS");
    assumeTrue(redis != null && !redis.isEmpty(), "LOCKSIDECAR_TEST_REDIS is not set");
    String[] flags = {"--ttl", "2s", "--store", redis, "--namespace", "java-" + UUID.randomUUID()};
    try (TestSidecar a = TestSidecar.start(flags);
        TestSidecar b = TestSidecar.start(flags);
        LockSidecar locksA = a.connect();
        LockSidecar locksB = b.connect()) {
      Hold hold = locksA.lock("r").acquire();
      CompletableFuture<LockLostException> loss = lossOf(hold);
      CompletableFuture<Hold> granted = locksB.lock("r").acquireAsync();
      TestSidecar.eventually("waiting", () -> b.waiters() == 1);
      a.freeze();
      granted.get(20, SECONDS);
      assertThrows(LockLostException.class, hold::check);
      assertEquals("SIDECAR_SILENT", loss.get(20, SECONDS).lostReason());
      a.thaw();
    }
  }

  /** Requests that have a limit end although nobody answers. */
  @Test
  void frozenSidecarDoesNotAnswer() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold hold = locks.lock("r").acquire();
      sidecar.freeze();
      CompletableFuture<Void> close = hold.closeAsync();
      CompletableFuture<Hold> try1 = locks.lock("r").acquireAsync(Duration.ZERO);
      SidecarException e = assertThrows(SidecarUnavailableException.class, () -> locks.lock("r").tryLock());
      assertEquals("SIDECAR_SILENT", e.reason());
      assertThrows(Exception.class, () -> close.get(20, SECONDS));
      Throwable t = assertThrows(Exception.class, () -> try1.get(20, SECONDS)).getCause();
      assertEquals("SIDECAR_SILENT", ((SidecarException) t).reason());
      sidecar.thaw();
      TestSidecar.eventually("free", () -> sidecar.holds() == 0 && sidecar.waiters() == 0);
    }
  }

  /** Who waits for a new connection, to a sidecar that does not answer, may leave too. */
  @Test
  void frozenWhileConnecting() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      sidecar.kill();
      TestSidecar.eventually("gone", () -> {
        try {
          return locks.lock("r").tryAcquire().isEmpty();
        } catch (SidecarException e) {
          return e.reason().equals("NO_SIDECAR");
        }
      });
      sidecar.restart();
      sidecar.freeze();
      CompletableFuture<Throwable> end = new CompletableFuture<>();
      Thread waits =
          new Thread(
              () -> {
                try {
                  locks.lock("r").lockInterruptibly();
                  end.complete(null);
                } catch (Throwable e) {
                  end.complete(e);
                }
              });
      waits.start();
      CompletableFuture<Hold> async = locks.lock("r").acquireAsync();
      TestSidecar.pause(50);
      assertFalse(async.isDone());
      assertTrue(async.cancel(false));
      waits.interrupt();
      assertEquals(InterruptedException.class, end.get(10, SECONDS).getClass());
      CompletableFuture<Hold> ends = locks.lock("r").acquireAsync();
      locks.close();
      Throwable e = assertThrows(Exception.class, () -> ends.get(10, SECONDS)).getCause();
      assertEquals("SESSION_CLOSED", ((SidecarException) e).reason());
    }
  }

  @Test
  void forced() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      Hold hold = locks.lock("r").acquire();
      CompletableFuture<LockLostException> loss = lossOf(hold);
      // the call returns when the hold is gone: a thread of its own
      CompletableFuture<Void> force = CompletableFuture.runAsync(() -> sidecar.force("r", "8s"));
      LockLostException e = loss.get(20, SECONDS);
      assertEquals("FORCED", e.lostReason());
      assertEquals("LOCK_LOST", e.reason());
      assertEquals(Long.toString(hold.fence()), e.metadata().get("fence"));
      assertTrue(e.graceLeft().toSeconds() >= 3, "grace " + e.graceLeft());
      assertFalse(force.isDone());
      assertThrows(LockLostException.class, hold::close); // ends the grace
      force.get(20, SECONDS);
      assertEquals(LockLostException.class, lossOf(locksLost(locks, sidecar)).get(20, SECONDS).getClass());
    }
  }

  /**
   * So the sidecar knows that the loss was seen and nobody works any more: the forced release, whose
   * grace is much longer than this waits, returns.
   */
  @Test
  void theEndOfABlockReleasesWhatWasLost() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      SidecarLock lock = locks.lock("r");
      CompletableFuture<Void> force;
      try (Hold hold = lock.acquire()) {
        force = take(sidecar, hold);
        assertThrows(LockLostException.class, hold::check);
        throw new IllegalStateException("the work fails"); // and says more than the loss
      } catch (IllegalStateException e) {
        assertEquals(LockLostException.class, e.getSuppressed()[0].getClass());
      }
      lock.acquire(Duration.ofSeconds(20)).close();

      lock.lock();
      force = take(sidecar, lock.hold());
      assertThrows(LockLostException.class, lock::unlock);
      force.get(20, SECONDS);

      Hold hold = lock.acquire();
      force = take(sidecar, hold);
      CompletableFuture<Void> closed = hold.closeAsync();
      force.get(20, SECONDS);
      assertEquals(LockLostException.class, assertThrows(Exception.class, () -> closed.get(20, SECONDS)).getCause().getClass());

      SidecarReadWriteLock rw = locks.readWriteLock("r").reentrant();
      rw.writeLock().lock();
      rw.readLock().lock();
      force = take(sidecar, rw.readLock().hold());
      assertThrows(LockLostException.class, rw.writeLock()::unlock);
      force.get(20, SECONDS);
      assertThrows(LockLostException.class, rw.readLock()::unlock);
      lock.acquire(Duration.ofSeconds(20)).close();
    }
  }

  /** Takes it from its holder, with a long grace; done when nobody has it. */
  static CompletableFuture<Void> take(TestSidecar sidecar, Hold hold) throws Exception {
    CompletableFuture<LockLostException> loss = lossOf(hold);
    CompletableFuture<Void> force = CompletableFuture.runAsync(() -> sidecar.force(hold.resource(), "60s"));
    loss.get(20, SECONDS);
    return force;
  }

  /** A hold that is lost already. */
  static Hold locksLost(LockSidecar locks, TestSidecar sidecar) throws Exception {
    Hold hold = locks.lock("l").acquire();
    sidecar.force("l", "0s");
    TestSidecar.eventually("lost", hold::isLost);
    return hold;
  }

  @Test
  void maxHold() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      SidecarLock lock = locks.lock("r").withMaxHold(Duration.ofMillis(300));
      lock.lock();
      Hold hold = lock.hold();
      assertTrue(hold.validFor().toMillis() <= 300, hold.validFor().toString());
      assertEquals("MAX_HOLD", lossOf(hold).get(20, SECONDS).lostReason());
      assertEquals("MAX_HOLD", assertThrows(LockLostException.class, lock::lock).lostReason());
      assertEquals("MAX_HOLD", assertThrows(LockLostException.class, lock::unlock).lostReason());
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
      lock.lock();
      lock.unlock();
    }
  }

  /** More than the sidecar takes at a time queue in the client. */
  @Test
  void manyWait() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start("--max-waiters", "10");
        LockSidecar locks = sidecar.connect()) {
      Hold first = locks.lock("r").acquire();
      CompletableFuture<?>[] all = new CompletableFuture<?>[100];
      for (int i = 0; i < all.length; i++) {
        all[i] = locks.lock("r").acquireAsync().thenCompose(Hold::closeAsync);
      }
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 10);
      first.close();
      CompletableFuture.allOf(all).get(60, SECONDS);
    }
  }

  @Test
  void noticeIsGivenOnce() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = sidecar.connect()) {
      AtomicInteger told = new AtomicInteger();
      CountDownLatch second = new CountDownLatch(1);
      Hold released = locks.lock("r").acquire();
      released.onLost(e -> told.incrementAndGet());
      released.close();
      Hold hold = locks.lock("r").acquire();
      hold.onLost(e -> told.incrementAndGet());
      hold.onLost(
          e -> {
            Thread.currentThread().setUncaughtExceptionHandler((thread, mistake) -> {}); // prints nothing
            throw new IllegalStateException("an app's mistake");
          });
      hold.onLost(e -> second.countDown());
      sidecar.force("r", "0s");
      assertTrue(second.await(20, SECONDS));
      sidecar.kill();
      TestSidecar.eventually("told", () -> told.get() == 1);
    }
  }

  @Test
  void keepAlive() throws Exception {
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks =
            LockSidecar.builder().socket(sidecar.socket).ttl(Duration.ofMillis(1500)).connect()) {
      Hold hold = locks.lock("r").acquire();
      TestSidecar.pause(3500); // real keep-alives, for over twice the limit
      hold.close();
    }
  }

  @Test
  void drainingSidecar() throws Exception {
    CountDownLatch draining = new CountDownLatch(1);
    try (TestSidecar sidecar = TestSidecar.start("--drain", "300ms", "--lost-grace", "100ms");
        LockSidecar locks =
            LockSidecar.builder().socket(sidecar.socket).onDraining(draining::countDown).connect()) {
      Hold hold = locks.lock("r").acquire();
      CompletableFuture<LockLostException> loss = lossOf(hold);
      sidecar.terminate();
      assertTrue(draining.await(20, SECONDS));
      assertEquals("STOPPING", loss.get(20, SECONDS).lostReason());
      assertThrows(LockLostException.class, hold::close);
      TestSidecar.eventually("gone", () -> {
        try {
          locks.lock("r").tryAcquire().ifPresent(Hold::close);
          return false;
        } catch (SidecarException e) {
          return e.reason().equals("NO_SIDECAR");
        }
      });
    }
  }

  @Test
  void refused() throws IOException {
    try (TestSidecar sidecar = TestSidecar.start("--max-sessions", "1");
        LockSidecar locks = sidecar.connect()) {
      SidecarException e = assertThrows(SidecarException.class, sidecar::connect);
      assertEquals("LIMIT_EXCEEDED", e.reason());
      assertEquals("1", e.metadata().get("max"));
      e = assertThrows(SidecarException.class, () -> LockSidecar.builder().socket(sidecar.socket).name("x".repeat(200)).connect().open());
      assertEquals("INVALID_REQUEST", e.reason());
      locks.lock("r").lock();
      locks.lock("r").unlock();
    }
  }
}
