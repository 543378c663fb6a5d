package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class LockTest {
  static TestSidecar sidecar;
  static LockSidecar locks;
  static final ExecutorService other = Executors.newSingleThreadExecutor();

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start();
    locks = LockSidecar.builder().socket(sidecar.socket).name("test").connect();
  }

  @AfterAll
  static void stop() {
    locks.close();
    sidecar.close();
    other.shutdownNow();
  }

  @AfterEach
  void nothingIsLeft() {
    TestSidecar.eventually("free", () -> sidecar.holds() == 0 && sidecar.waiters() == 0);
  }

  /** What a call gives on another thread. */
  static <T> T elsewhere(Callable<T> call) throws Exception {
    return other.submit(call).get(20, SECONDS);
  }

  static boolean asks(Callable<Boolean> call) throws Exception {
    return elsewhere(call);
  }

  @Test
  void aLockOfTheThread() throws Exception {
    Lock lock = locks.lock("r").reentrant();
    assertEquals("SidecarLock[r EXCLUSIVE reentrant]", lock.toString());
    lock.lock();
    try {
      assertFalse(asks(lock::tryLock));
      assertFalse(asks(() -> locks.lock("r").reentrant().tryLock(20, MILLISECONDS)));
      lock.lock(); // re-enters
      assertTrue(lock.tryLock());
      assertTrue(locks.lock("r").reentrant().tryLock(1, SECONDS), "another object for the same resource");
      assertFalse(locks.lock("r").tryLock(), "who enters again says so");
      for (int i = 0; i < 3; i++) {
        lock.unlock();
      }
      assertFalse(asks(lock::tryLock), "it is still locked once");
      assertThrows(Exception.class, () -> elsewhere(() -> { lock.unlock(); return 0; }), "not that thread's");
    } finally {
      lock.unlock();
    }
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    assertTrue(asks(() -> { boolean got = lock.tryLock(); lock.unlock(); return got; }));
    assertThrows(UnsupportedOperationException.class, lock::newCondition);
  }

  @Test
  void notReentrantUnlessAsked() throws Exception {
    SidecarLock lock = locks.lock("r");
    assertFalse(lock.isReentrant());
    assertTrue(lock.reentrant().withMaxHold(Duration.ofHours(1)).withOwner("x").isReentrant());
    lock.lock();
    try {
      assertFalse(lock.tryLock());
      assertFalse(lock.tryLock(20, MILLISECONDS));
      assertTrue(lock.tryAcquire().isEmpty());
      assertFalse(lock.reentrant().tryLock(), "what is entered again was entered so");
      assertEquals(1, lock.hold().count());
    } finally {
      lock.unlock();
    }
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    SidecarLock labelled = lock.withOwner("batch"); // only says who asks
    try (Hold hold = labelled.acquire()) {
      assertTrue(labelled.tryAcquire().isEmpty());
      assertEquals("batch", ownerOf("r"));
    }
    SidecarReadWriteLock rw = locks.readWriteLock("r");
    rw.writeLock().lock();
    assertFalse(rw.readLock().tryLock());
    rw.writeLock().unlock();
    rw.readLock().lock();
    assertTrue(rw.readLock().tryLock(), "beside itself, as beside others");
    assertFalse(rw.writeLock().tryLock());
    rw.readLock().unlock();
    rw.readLock().unlock();
    assertThrows(IllegalStateException.class, () -> lock.reentrant().acquireAsync(), "a future has no thread");
  }

  static String ownerOf(String resource) {
    return sidecar.lock(resource).objects("holders").get(0).text("owner");
  }

  /** The same for all that it asks for, so that one can see what a thread has and what it waits for. */
  @Test
  void whoAsksIsTheThread() throws Exception {
    String mine;
    try (Hold a = locks.lock("a").acquire();
        Hold b = locks.lock("b").reentrant().acquire();
        Hold c = locks.lock("c").reentrant().acquire();
        Hold again = locks.lock("c").reentrant().acquire()) {
      mine = ownerOf("a");
      assertEquals(mine, ownerOf("b"));
      assertEquals(mine, ownerOf("c"));
      assertEquals(2, again.count());
    }
    Thread.currentThread().setName("renamed-" + Thread.currentThread().getName());
    locks.lock("a").lock();
    assertEquals(mine, ownerOf("a"));
    locks.lock("a").unlock();
    assertNotEquals(mine, elsewhere(() -> { try (Hold h = locks.lock("a").acquire()) { return ownerOf("a"); } }));
    try (Hold h = locks.lock("a").acquireAsync().get(20, SECONDS)) {
      assertNotEquals(mine, ownerOf("a"), "the thread does not wait for it");
    }
  }

  @Test
  void whatAHoldKnows() throws Exception {
    SidecarLock lock = locks.lock("r");
    long fence;
    try (Hold hold = lock.acquire()) {
      fence = hold.fence();
      assertEquals("r", hold.resource());
      assertEquals(LockMode.EXCLUSIVE, hold.mode());
      assertFalse(hold.isLost());
      hold.check();
      assertTrue(hold.guard().isEmpty(), "the embedded store has none");
      Duration v = hold.validFor();
      assertTrue(v.toMillis() > 5000 && v.toMillis() < 10_000, v.toString());
      assertTrue(hold.toString().startsWith("Hold[r EXCLUSIVE fence=" + fence), hold.toString());
    }
    lock.lock();
    Hold hold = lock.hold();
    assertTrue(hold.fence() > fence);
    lock.unlock();
    assertEquals(Duration.ZERO, hold.validFor());
    assertFalse(hold.isLost(), "it was released");
    assertThrows(NotHolderException.class, hold::check);
    assertThrows(IllegalMonitorStateException.class, lock::hold);
  }

  @Test
  void aHoldIsNotBoundToItsThread() throws Exception {
    SidecarLock lock = locks.lock("r");
    Hold hold = lock.acquire();
    assertTrue(lock.tryAcquire().isEmpty(), "each acquire stands for itself");
    assertThrows(WaitTimeoutException.class, () -> lock.acquire(Duration.ofMillis(10)));
    LockHeldException held = assertThrows(LockHeldException.class, () -> lock.acquire(Duration.ZERO));
    assertEquals("LOCK_HELD", held.reason());
    assertEquals(Long.toString(ProcessHandle.current().pid()), held.metadata().get("holder_pid"));
    assertEquals("test", held.metadata().get("holder_session"));
    elsewhere(() -> { hold.close(); return 0; });
    hold.close(); // a second time it does nothing
    try (Hold next = lock.tryAcquire().orElseThrow()) {
      assertTrue(next.fence() > hold.fence());
    }
    lock.lock();
    Hold mine = lock.hold();
    elsewhere(() -> { mine.close(); return 0; });
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @Test
  void anOwnerIsShared() throws Exception {
    SidecarLock lock = locks.lock("r").withOwner("batch").reentrant();
    lock.lock();
    try (Hold hold = elsewhere(lock::acquire);
        Hold future = lock.acquireAsync().get(20, SECONDS)) {
      assertEquals(3, future.count());
      assertEquals(lock.hold().id(), hold.id(), "counted up");
      assertTrue(locks.lock("r").tryAcquire().isEmpty());
    }
    assertTrue(locks.lock("r").tryAcquire().isEmpty(), "held once more");
    elsewhere(() -> { lock.unlock(); return 0; });
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @Test
  void readersAndWriters() throws Exception {
    ReadWriteLock rw = locks.readWriteLock("r").reentrant();
    rw.readLock().lock();
    assertTrue(asks(() -> { boolean got = rw.readLock().tryLock(); rw.readLock().unlock(); return got; }));
    assertFalse(asks(rw.writeLock()::tryLock));
    assertThrows(UpgradeRefusedException.class, rw.writeLock()::lock);
    assertFalse(rw.writeLock().tryLock(), "as the JDK's");
    assertFalse(rw.writeLock().tryLock(20, SECONDS), "it would wait for itself");
    assertThrows(IllegalMonitorStateException.class, rw.writeLock()::unlock);
    rw.readLock().unlock();

    rw.writeLock().lock();
    long fence = locks.readWriteLock("r").writeLock().hold().fence();
    rw.readLock().lock();
    assertFalse(asks(rw.readLock()::tryLock));
    rw.writeLock().unlock(); // downgrades
    Hold hold = locks.readWriteLock("r").readLock().hold();
    assertEquals(LockMode.SHARED, hold.mode());
    assertEquals(fence, hold.fence());
    assertTrue(asks(() -> { boolean got = rw.readLock().tryLock(); rw.readLock().unlock(); return got; }));
    rw.readLock().unlock();

    try (Hold w = locks.readWriteLock("r").writeLock().acquire()) {
      w.downgrade();
      assertEquals(LockMode.SHARED, w.mode());
      w.downgrade();
    }
  }

  @Test
  void severalAreNotTheOneThatIsCalledLikeThem() {
    SidecarLock several = locks.lock(List.of("a", "b"));
    SidecarLock one = locks.lock("a, b");
    several.lock();
    one.lock();
    assertEquals(2, several.hold().parts().size());
    several.unlock();
    assertTrue(one.isLocked() && !several.isLocked());
    one.hold().check();
    one.unlock();
  }

  @Test
  void futures() throws Exception {
    SidecarLock lock = locks.lock("r");
    Hold first = lock.acquireAsync().get(20, SECONDS);
    CompletableFuture<Hold> second = lock.acquireAsync();
    CompletableFuture<Void> chain =
        second.thenCompose(
            hold -> {
              lock.tryAcquire(); // may wait here: it is not the thread that reads
              return hold.closeAsync();
            });
    TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
    assertFalse(second.isDone());
    Throwable late =
        assertThrows(Exception.class, () -> lock.acquireAsync(Duration.ofMillis(5)).get(20, SECONDS)).getCause();
    assertEquals("WAIT_TIMEOUT", ((SidecarException) late).reason());
    first.closeAsync().get(20, SECONDS);
    chain.get(20, SECONDS);
  }

  @Test
  void badRequests() {
    for (String bad : List.of("", "\ud800", "x".repeat(513), "x".repeat(1 << 20), "a\nb")) {
      SidecarException e = assertThrows(SidecarException.class, () -> locks.lock(bad).acquire());
      assertEquals("INVALID_REQUEST", e.reason());
      assertEquals("resource", e.metadata().get("field"));
    }
    SidecarException e =
        assertThrows(SidecarException.class, () -> locks.lock("r").withMaxHold(Duration.ofMillis(1)).lock());
    assertEquals("max_hold", e.metadata().get("field"));
    for (Duration bad : List.of(Duration.ofMillis(1), Duration.ofMillis(-1), Duration.ofDays(2))) {
      e = assertThrows(SidecarException.class, () -> locks.lock("r").withMinHold(bad).lock());
      assertEquals("min_hold", e.metadata().get("field"));
    }
    assertTrue(locks.lock("ключ/🔑").tryAcquire().map(h -> { h.close(); return true; }).orElseThrow());
  }

  /** Threads, objects and clients exclude each other: no increment is lost. */
  @Test
  void noIncrementIsLost() throws Exception {
    int[] counters = new int[3];
    ExecutorService pool = Executors.newFixedThreadPool(8);
    try (LockSidecar second = sidecar.connect()) {
      List<Future<?>> all =
          IntStream.range(0, 8)
              .<Future<?>>mapToObj(
                  t ->
                      pool.submit(
                          () -> {
                            for (int n = 0; n < 60; n++) {
                              int r = (t + n) % counters.length;
                              SidecarLock lock = (t % 2 == 0 ? locks : second).lock("n/" + r);
                              if (n % 2 == 0) {
                                lock.lock();
                                counters[r]++;
                                lock.unlock();
                              } else {
                                try (Hold hold = lock.acquire()) {
                                  counters[r]++;
                                }
                              }
                            }
                            return null;
                          }))
              .toList();
      for (Future<?> f : all) {
        f.get(60, SECONDS);
      }
    } finally {
      pool.shutdownNow();
    }
    assertEquals(List.of(160, 160, 160), IntStream.of(counters).boxed().toList());
  }

  @Test
  void closing() throws Exception {
    LockSidecar c = sidecar.connect();
    Hold hold = c.lock("r").acquire();
    CompletableFuture<Hold> waits = c.lock("r").acquireAsync();
    c.close();
    assertTrue(hold.isLost());
    assertEquals("SESSION_CLOSED", assertThrows(LockLostException.class, hold::close).lostReason());
    Throwable e = assertThrows(Exception.class, () -> waits.get(20, SECONDS)).getCause();
    assertEquals("SESSION_CLOSED", ((SidecarException) e).reason());
    e = assertThrows(SidecarUnavailableException.class, () -> c.lock("r").lock());
    assertEquals("SESSION_CLOSED", ((SidecarException) e).reason());
    assertNotEquals(null, locks.lock("r").tryAcquire().map(h -> { h.close(); return h; }).orElse(null), "free after close");
    c.close(); // a second time it does nothing
  }
}
