package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** All that the API has, through the client. */
class SurfaceTest {
  static TestSidecar sidecar;
  static LockSidecar locks;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start("--name", "node-1");
    locks = LockSidecar.builder().socket(sidecar.socket).name("surface").metadata(Map.of("leader", "10.0.0.7:9000")).connect();
  }

  @AfterAll
  static void stop() {
    locks.close();
    sidecar.close();
  }

  @AfterEach
  void nothingIsLeft() {
    TestSidecar.eventually("free", () -> sidecar.holds() == 0 && sidecar.waiters() == 0);
  }

  @Test
  void severalAtOnce() throws Exception {
    SidecarLock both = locks.lock(List.of("b", "a"));
    assertEquals("b, a", both.resource());
    try (Hold hold = both.acquire()) {
      assertEquals("a, b", hold.resource());
      assertEquals(List.of("a", "b"), hold.parts().stream().map(Part::resource).toList());
      assertTrue(hold.parts().stream().allMatch(p -> p.fence() > 0 && !p.lockId().isEmpty() && p.guard().isEmpty()));
      assertTrue(locks.lock("a").tryAcquire().isEmpty());
      assertTrue(locks.lock("b").tryAcquire().isEmpty());
      assertTrue(both.isLocked());
      LockHeldException held = assertThrows(LockHeldException.class, () -> locks.lock(List.of("b", "c")).acquire(Duration.ZERO));
      assertEquals("b", held.metadata().get("resource"));
      assertTrue(locks.lock("c").tryAcquire().map(SurfaceTest::released).isPresent(), "all or none");
    }
    Hold lost = both.acquire();
    CompletableFuture<LockLostException> loss = LossTest.lossOf(lost);
    locks.forceRelease("b", Duration.ZERO);
    LockLostException e = loss.get(20, SECONDS);
    assertEquals("b", e.metadata().get("resource"), "which of them was lost");
    assertEquals(Long.toString(lost.parts().get(1).fence()), e.metadata().get("fence"));
    assertThrows(LockLostException.class, lost::close);
    assertFalse(both.isLocked());
  }

  static Hold released(Hold h) {
    h.close();
    return h;
  }

  @Test
  void permits() throws Exception {
    SidecarLock lock = locks.lock("exports").withLimit(2);
    try (Hold one = lock.acquire();
        Hold two = lock.tryAcquire().orElseThrow()) {
      assertEquals(LockMode.PERMIT, one.mode());
      assertEquals(OptionalInt.of(1 - one.slot().getAsInt()), two.slot());
      assertTrue(lock.tryAcquire().isEmpty());
      List<LockState.Holder> holders = locks.get("exports").holders();
      assertEquals(2, holders.size());
      assertEquals(OptionalInt.of(2), holders.get(0).limit());
      assertTrue(holders.get(0).slot().isPresent());
      assertEquals("limit", refused("limit", () -> locks.lock("exports").withLimit(3).acquire()));
    }
    assertEquals("limit", refused("limit", () -> locks.lock("exports").withLimit(0)));
    assertEquals("mode", refused("mode", () -> locks.readWriteLock("exports").readLock().withLimit(2)));
    try (Hold hold = locks.lock("r").acquire()) {
      assertEquals(OptionalInt.empty(), hold.slot());
    }
  }

  /** The field that an InvalidRequestException names; the one that is wanted where the sidecar names none. */
  static String refused(String wanted, Executable call) {
    InvalidRequestException e = assertThrows(InvalidRequestException.class, call);
    return e.metadata().getOrDefault("field", wanted);
  }

  @Test
  void extend() throws Exception {
    try (Hold hold = locks.lock("r").withMaxHold(Duration.ofMinutes(1)).acquire()) {
      hold.extend(Duration.ofMillis(2000));
      assertTrue(hold.validFor().toMillis() <= 2000, hold.validFor().toString());
      hold.extend(Duration.ofHours(1));
      assertTrue(hold.validFor().toMillis() > 3000, hold.validFor().toString());
      assertThrows(InvalidRequestException.class, () -> hold.extend(Duration.ofMillis(1)));
      hold.check();
    }
    Hold short1 = locks.lock("r").acquire();
    CompletableFuture<LockLostException> loss = LossTest.lossOf(short1);
    short1.extend(Duration.ofMillis(200));
    assertEquals("MAX_HOLD", loss.get(20, SECONDS).lostReason());
    assertThrows(LockLostException.class, () -> short1.extend(Duration.ofMinutes(1)));
    assertThrows(LockLostException.class, short1::close);
  }

  @Test
  void once() throws Exception {
    SidecarLock once = locks.once("withdrawals/1", new Once(Duration.ofDays(1), 3));
    try (Hold first = once.acquire()) {
      assertEquals(1, first.attempt());
      assertEquals(Optional.empty(), first.previous());
      assertTrue(first.outcomeGuard().isEmpty(), "the embedded store has none");
    } // without a word
    Hold second = once.acquire();
    assertEquals(2, second.attempt());
    assertEquals(Outcome.State.UNKNOWN, second.previous().orElseThrow().state());
    second.failed("the bank is closed");
    assertThrows(NotHolderException.class, second::check);
    second.failed("the bank is closed"); // a second time it records nothing
    second.close();
    try (Hold third = once.acquire()) {
      Outcome before = third.previous().orElseThrow();
      assertEquals("the bank is closed", before.note());
      assertEquals(2, before.attempt());
      assertEquals("surface", before.session());
      third.succeeded("transfer 7");
      assertEquals(Duration.ZERO, third.validFor());
    }
    AlreadyDoneException done = assertThrows(AlreadyDoneException.class, once::acquire);
    assertEquals("transfer 7", done.metadata().get("note"));
    Outcome outcome = locks.outcomes("withdrawals/", Outcome.State.SUCCEEDED).findFirst().orElseThrow();
    assertEquals("withdrawals/1", outcome.resource());
    assertEquals(ProcessHandle.current().pid(), outcome.pid());
    assertEquals(0, locks.outcomes("withdrawals/", Outcome.State.FAILED, Outcome.State.UNKNOWN).count());
    assertEquals(Outcome.State.SUCCEEDED, locks.resetOutcome("withdrawals/1").orElseThrow().state());
    assertEquals(Optional.empty(), locks.resetOutcome("withdrawals/1"));

    for (int i = 0; i < 3; i++) {
      once.acquire().close();
    }
    assertThrows(AttemptsExhaustedException.class, once::acquire);
    assertThrows(InvalidRequestException.class, () -> locks.once("x", new Once(Duration.ZERO, 0)).acquire());

    Hold late = locks.once("late").withMaxHold(Duration.ofMillis(300)).acquire();
    assertEquals("MAX_HOLD", LossTest.lossOf(late).get(20, SECONDS).lostReason());
    late.succeeded("done all the same"); // nobody else has started
    assertTrue(late.isLost(), "it was not alone for sure");
    assertThrows(LockLostException.class, late::check);
    assertThrows(AlreadyDoneException.class, () -> locks.once("late").acquire());

    Hold easy = locks.once("easy").acquire();
    easy.succeeded();
    assertThrows(AlreadyDoneException.class, () -> locks.once("easy").tryAcquire());
  }

  @Test
  void lookingAround() throws Exception {
    assertFalse(locks.lock("x/1").isLocked());
    assertFalse(locks.get("x/1").isHeld());
    try (Hold hold = locks.lock("x/1").withOwner("batch").acquire();
        Hold other = locks.readWriteLock("x/2").readLock().acquire()) {
      CompletableFuture<Hold> waits = locks.lock("x/1").acquireAsync();
      TestSidecar.eventually("waiting", () -> sidecar.waiters() == 1);
      LockState state = locks.get("x/1");
      assertTrue(state.isHeld() && locks.lock("x/1").isLocked());
      LockState.Holder holder = state.holders().get(0);
      assertEquals(hold.id(), holder.lockId());
      assertEquals(hold.fence(), holder.fence());
      assertEquals(ProcessHandle.current().pid(), holder.pid());
      assertEquals("surface", holder.session());
      assertEquals("batch", holder.owner());
      assertEquals("node-1", holder.sidecar());
      assertEquals(Map.of("leader", "10.0.0.7:9000"), holder.metadata());
      assertEquals(holder.sessionRef(), state.waiters().get(0).sessionRef());
      assertNotEquals("", holder.sessionRef());
      try (Stream<LockState> all = locks.list("x/")) {
        assertEquals(List.of("x/1", "x/2"), all.map(LockState::resource).toList());
      }
      assertEquals(0, locks.list("y/").count());
      SidecarInfo info = locks.info();
      assertTrue(info.ready() && !info.draining());
      assertEquals(2, info.holds());
      assertEquals("node-1", info.sidecar());
      assertEquals(Duration.ofSeconds(10), info.leaseTtl());

      String waiter = state.waiters().get(0).lockId();
      assertEquals(List.of(waiter), locks.forceRelease("x/1", waiter, Duration.ZERO));
      Throwable e = assertThrows(ExecutionException.class, () -> waits.get(20, SECONDS)).getCause();
      assertEquals(LockLostException.class, e.getClass());
    }
    assertEquals(List.of(), locks.forceRelease("x/1", Duration.ZERO));
    assertFalse(locks.isDraining());
  }

  @Test
  void manyPages() throws Exception {
    List<CompletableFuture<Hold>> all =
        Stream.iterate(0, i -> i + 1).limit(1500).map(i -> locks.lock("page/" + i).acquireAsync()).toList();
    for (CompletableFuture<Hold> one : all) {
      one.get(60, SECONDS);
    }
    assertEquals(1500, locks.list("page/").map(LockState::resource).distinct().count());
    for (CompletableFuture<Void> one : all.stream().map(f -> f.join().closeAsync()).toList()) {
      one.get(60, SECONDS);
    }
  }

  /** What a thread reads from a stream that does not end. */
  static <T> BlockingQueue<T> read(Stream<T> stream, CompletableFuture<Throwable> end) {
    BlockingQueue<T> came = new LinkedBlockingQueue<>();
    new Thread(
            () -> {
              try {
                stream.forEach(came::add);
                end.complete(null);
              } catch (Throwable e) {
                end.complete(e);
              }
            })
        .start();
    return came;
  }

  @Test
  void watching() throws Exception {
    CompletableFuture<Throwable> end = new CompletableFuture<>();
    try (Hold there = locks.lock("w/1").acquire()) {
      Stream<LockChange> watch = locks.watch("w/", Duration.ofMillis(100));
      BlockingQueue<LockChange> came = read(watch, end);
      assertEquals(LockChange.Kind.CURRENT, came.poll(20, SECONDS).kind());
      assertEquals(new LockChange(LockChange.Kind.SYNCED, Optional.empty(), List.of()), came.poll(20, SECONDS));
      Hold hold = locks.lock("w/2").acquire();
      LockChange change = came.poll(20, SECONDS);
      assertEquals(LockChange.Kind.CHANGED, change.kind());
      assertEquals(hold.id(), change.lock().orElseThrow().holders().get(0).lockId());
      hold.close();
      LockChange last = came.poll(20, SECONDS);
      while (last.kind() == LockChange.Kind.CHANGED) { // parked first
        last = came.poll(20, SECONDS);
      }
      assertEquals(LockChange.Kind.FREE, last.kind());
      watch.close();
      assertEquals(null, end.get(20, SECONDS), "it ends");
    }
  }

  @Test
  void anInterruptEndsAWatch() throws Exception {
    Iterator<LockChange> changes = locks.watch("none/").iterator();
    assertEquals(LockChange.Kind.SYNCED, changes.next().kind());
    Thread.currentThread().interrupt();
    assertThrows(CancelledException.class, changes::next);
    assertTrue(Thread.interrupted(), "the thread stays interrupted");
    assertThrows(InvalidRequestException.class, () -> locks.watch("", Duration.ZERO).forEach(c -> {}));
  }

  @Test
  void leaders() throws Exception {
    Leader nobody = locks.leader("primary");
    assertFalse(nobody.leads());
    CompletableFuture<Throwable> end = new CompletableFuture<>();
    Stream<Leader> watch = locks.watchLeader("primary", Duration.ofMillis(100));
    BlockingQueue<Leader> came = read(watch, end);
    assertFalse(came.poll(20, SECONDS).leads());
    try (Hold hold = locks.lock("primary").acquire()) {
      Leader leader = locks.leader("primary");
      assertEquals("10.0.0.7:9000", leader.value());
      assertEquals(hold.fence(), leader.holder().orElseThrow().fence());
      Leader told = came.poll(20, SECONDS);
      assertEquals("10.0.0.7:9000", told.value());
    }
    assertFalse(came.poll(20, SECONDS).leads());
    watch.close();
    assertEquals(null, end.get(20, SECONDS));
  }

  @Test
  void badArgumentsSayWhatIsWrong() {
    SidecarLock lock = locks.lock("r");
    Map<Executable, String> bad =
        Map.ofEntries(
            Map.entry(() -> locks.lock((String) null), "resource"),
            Map.entry(() -> locks.lock((List<String>) null), "resources"),
            Map.entry(() -> locks.lock(Arrays.asList("a", null)), "one of the resources"),
            Map.entry(() -> locks.readWriteLock((String) null), "resource"),
            Map.entry(() -> locks.once(null), "resource"),
            Map.entry(() -> locks.once("r", null), "once"),
            Map.entry(() -> locks.get(null), "resource"),
            Map.entry(() -> locks.list(null), "prefix"),
            Map.entry(() -> lock.acquire(null), "wait"),
            Map.entry(() -> lock.tryAcquire(null), "wait"),
            Map.entry(() -> lock.acquireAsync(null), "wait"),
            Map.entry(() -> lock.tryLock(1, null), "unit"),
            Map.entry(() -> lock.withOwner(null), "owner"),
            Map.entry(() -> lock.withMaxHold(null), "maxHold"),
            Map.entry(() -> lock.withMinHold(null), "minHold"),
            Map.entry(() -> locks.attach(null), "handle"),
            Map.entry(() -> locks.attachAsync(null), "handle"),
            Map.entry(() -> locks.extendDetached(null, Duration.ZERO), "handle"),
            Map.entry(() -> locks.extendDetached("h", null), "ttl"),
            Map.entry(() -> locks.releaseDetached(null), "handle"),
            Map.entry(() -> new Once(null, 0), "keep"),
            Map.entry(() -> LockSidecar.builder().name(null), "name"),
            Map.entry(() -> LockSidecar.builder().socket(null), "socket"),
            Map.entry(() -> LockSidecar.builder().executor(null), "executor"),
            Map.entry(() -> LockSidecar.builder().metadata(java.util.Collections.singletonMap("k", null)), "metadata k"));
    bad.forEach(
        (call, what) -> {
          NullPointerException e = assertThrows(NullPointerException.class, call);
          assertTrue(e.getMessage() != null && e.getMessage().startsWith(what), what + ": " + e.getMessage());
        });
    assertEquals("name", refused("", () -> LockSidecar.builder().name("\ud800")));
    assertEquals("metadata", refused("", () -> LockSidecar.builder().metadata(Map.of("k", "\ud800"))));
    for (Duration absurd : List.of(Duration.ofSeconds(Long.MAX_VALUE), Duration.ofSeconds(Long.MIN_VALUE))) {
      for (Executable call : List.<Executable>of(() -> locks.forceRelease("r", absurd), lock.withMaxHold(absurd)::tryAcquire)) {
        assertEquals("INVALID_REQUEST", assertThrows(SidecarException.class, call).reason());
      }
    }
  }

  @Test
  void oftenReleased() throws Exception {
    Hold hold = locks.lock("r").acquire();
    hold.close();
    hold.close();
    hold.closeAsync().get(20, SECONDS);
    assertThrows(NotHolderException.class, hold::check);
    assertThrows(NotHolderException.class, hold::release);
    Hold lost = LossTest.locksLost(locks, sidecar);
    assertThrows(LockLostException.class, lost::release);
    assertThrows(LockLostException.class, lost::release, "it says so each time");
    assertThrows(LockLostException.class, lost::check);
    assertTrue(lost.isLost());
    lost.close();
  }
}
