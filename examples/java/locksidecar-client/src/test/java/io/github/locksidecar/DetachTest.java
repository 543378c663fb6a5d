package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.OptionalInt;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.locks.AbstractOwnableSynchronizer;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What is taken here and released there. */
class DetachTest {
  static final Duration MINUTE = Duration.ofMinutes(1);
  static TestSidecar sidecar;
  static LockSidecar locks;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start();
    locks = sidecar.connect();
  }

  @AfterAll
  static void stop() {
    locks.close();
    sidecar.close();
  }

  @Test
  void aBlockThatDetachesEndsQuietly() throws Exception {
    Hold before;
    Detached detached;
    try (Hold hold = locks.lock("block").detachable().acquire()) {
      before = hold;
      detached = hold.detach(MINUTE);
      assertEquals(Duration.ZERO, hold.validFor());
      NotHolderException e = assertThrows(NotHolderException.class, hold::check);
      assertTrue(e.getMessage().contains("was detached"), e.getMessage());
    }
    assertThrows(NotHolderException.class, before::release);
    before.closeAsync().get(20, SECONDS);
    assertFalse(before.isLost());
    assertEquals(0, before.count());
    assertTrue(before.toString().endsWith("detached]"), before.toString());
    assertFalse(detached.toString().contains(detached.handle()), "it is a password");
    assertTrue(locks.lock("block").tryAcquire().isEmpty());
    try (Hold hold = locks.attach(detached.handle())) {
      assertEquals(before.fence(), hold.fence());
      assertEquals("block", hold.resource());
      hold.check();
    }
    assertThrows(NotHolderException.class, () -> locks.attach(detached.handle()));
    locks.lock("block").tryAcquire().orElseThrow().close();
  }

  @Test
  void futures() throws Exception {
    Detached detached;
    try (Hold hold = locks.lock("future").withLimit(3).detachable().acquire()) {
      detached = hold.detach(MINUTE);
    }
    assertEquals(OptionalInt.of(3), detached.limit());
    Hold first = locks.attachAsync(detached.handle()).get(20, SECONDS);
    CompletableFuture<LockLostException> loss = LossTest.lossOf(first);
    Hold second = locks.attachAsync(detached.handle()).get(20, SECONDS);
    assertEquals("TAKEN_OVER", loss.get(20, SECONDS).lostReason());
    assertThrows(LockLostException.class, first::close);
    second.close();
    CompletableFuture<Hold> none = locks.attachAsync(detached.handle());
    Throwable e = assertThrows(java.util.concurrent.ExecutionException.class, () -> none.get(20, SECONDS)).getCause();
    assertEquals(NotHolderException.class, e.getClass());
  }

  /** unlock() has nothing to do, as after a close of the hold. */
  @Test
  void asALock() {
    SidecarLock lock = locks.lock("lock").detachable();
    lock.lock();
    Detached detached = lock.hold().detach(MINUTE);
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    locks.releaseDetached(detached.handle());
    assertTrue(lock.tryLock());
    lock.unlock();
  }

  @Test
  void badValues() throws Exception {
    try (Hold hold = locks.lock("bad").detachable().acquire()) {
      for (Duration bad : new Duration[] {Duration.ZERO, MINUTE.negated(), Duration.ofDays(2)}) {
        assertEquals("ttl", SurfaceTest.refused("", () -> hold.detach(bad)));
      }
      assertThrows(NullPointerException.class, () -> hold.detach(null));
      hold.check();
    }
    for (String bad : new String[] {"", "\ud800", "x".repeat(5000), "no handle"}) {
      assertEquals("handle", SurfaceTest.refused("", () -> locks.attach(bad)));
      assertEquals("handle", SurfaceTest.refused("", () -> locks.extendDetached(bad, MINUTE)));
      assertEquals("handle", SurfaceTest.refused("", () -> locks.releaseDetached(bad)));
    }
  }

  /** The detach comes first: then there is nothing to close, whichever answer comes first. */
  @Test
  void aCloseBesideADetach() throws Exception {
    try (TestSidecar frozen = TestSidecar.start("--ttl", "1m");
        LockSidecar client = frozen.connect()) {
      long end = System.nanoTime() + 2 * MINUTE.toNanos();
      for (int done = 0; done < 2; ) {
        boolean async = done == 1;
        Hold hold = client.lock("beside").detachable().acquire();
        frozen.freeze();
        FutureTask<Detached> detaching = started(() -> hold.detach(Duration.ofSeconds(1)));
        FutureTask<Void> closing =
            started(
                () -> {
                  if (!async) {
                    hold.close();
                    return null;
                  }
                  return hold.closeAsync().get();
                });
        frozen.thaw();
        try {
          assertTrue(detaching.get().validFor().toMillis() <= 1000);
          closing.get();
          done++;
        } catch (ExecutionException e) {
          // A machine that stood still while the sidecar was frozen.
          boolean late = e.toString().contains("SidecarUnavailable") || e.toString().contains("LockLost");
          assertTrue(late && System.nanoTime() < end, e::toString);
        }
      }
    }
  }

  /** A call that waits for its answer, and not only for its turn to ask. */
  private static <T> FutureTask<T> started(Callable<T> call) throws Exception {
    FutureTask<T> task = new FutureTask<>(call);
    Thread thread = new Thread(task);
    thread.start();
    TestSidecar.eventually(
        "it waits",
        () ->
            thread.getState().compareTo(Thread.State.WAITING) >= 0
                && !(LockSupport.getBlocker(thread) instanceof AbstractOwnableSynchronizer));
    return task;
  }

  /** The sidecar attaches it after the client has given that up: it is for the next one who has the handle. */
  @Test
  void anAttachThatIsGivenUp() throws Exception {
    try (TestSidecar frozen = TestSidecar.start("--ttl", "1m");
        LockSidecar client = frozen.connect()) {
      Detached detached;
      try (Hold hold = client.lock("given up").detachable().acquire()) {
        detached = hold.detach(Duration.ofHours(1));
      }
      frozen.freeze();
      SidecarUnavailableException e = assertThrows(SidecarUnavailableException.class, () -> client.attach(detached.handle()));
      assertEquals("SIDECAR_SILENT", e.reason());
      frozen.thaw();
      client.lock("other").acquire().close(); // what was sent before is carried out
      assertTrue(client.lock("given up").tryAcquire().isEmpty());
      client.attach(detached.handle()).close();
      client.lock("given up").tryAcquire().orElseThrow().close();
    }
  }

  /** The sidecar has detached it, and says so after the client has given it up: nobody keeps the lock. */
  @Test
  void aHandleThatNobodyWaitsFor() throws Exception {
    try (TestSidecar frozen = TestSidecar.start("--ttl", "1m");
        LockSidecar client = frozen.connect()) {
      Hold hold = client.lock("late").detachable().acquire();
      frozen.freeze();
      SidecarUnavailableException e = assertThrows(SidecarUnavailableException.class, () -> hold.detach(Duration.ofHours(1)));
      assertEquals("SIDECAR_SILENT", e.reason());
      assertThrows(LockLostException.class, hold::check);
      frozen.thaw();
      TestSidecar.eventually("free", () -> !client.get("late").isHeld());
    }
  }
}
