package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** When a hold is over, on a clock that the test moves. */
class HoldsTest {
  static final long S = 1_000_000_000L;
  static final long MS = 1_000_000L;

  /** The sidecar's clock is ahead of ours: another time namespace. */
  static final long AHEAD = 1000 * S;

  final AtomicLong nano = new AtomicLong(50 * S);
  final AtomicLong suspended = new AtomicLong();
  final BootClock clock = new BootClock(() -> now(), nano::get);
  final ReentrantLock mu = new ReentrantLock();
  final Acquires acquires = new Acquires();
  final Holds holds = new Holds(mu, clock, Runnable::run, acquires);
  final List<String> told = new ArrayList<>();

  long now() {
    return nano.get() + suspended.get();
  }

  @BeforeEach
  void open() {
    mu.lock();
    opened(S);
  }

  void opened(long margin) {
    holds.opened(clock.atLeast(), new Json().with("countedAt", at(now())).with("leaseMargin", d(margin)));
  }

  @AfterEach
  void close() {
    holds.end("", "");
    mu.unlock();
  }

  static String d(long nanos) {
    return Times.format(Duration.ofNanos(nanos));
  }

  static String at(long our) {
    return d(our + AHEAD);
  }

  Held grant(String id, long validFor, long maxHold) {
    LockRequest q = new LockRequest(List.of("r"), LockMode.EXCLUSIVE);
    Call c = Call.acquiring(maxHold == 0 ? q : q.lasting(Duration.ofNanos(maxHold)));
    acquires.enter(c);
    c.sent = clock.atLeast();
    Json g = new Json().with("lockId", id).with("resource", "r").with("mode", "EXCLUSIVE");
    g.with("fence", "7").with("countedAt", at(now())).with("validFor", d(validFor));
    Held h = holds.granted(c, g);
    answered(c);
    holds.listen(h, new Held.Listener(null, () -> told.add(id + " " + holds.problem(h).lostReason())));
    return h;
  }

  /** Another thread's acquire is on its way. */
  Call asks() {
    Call c = Call.acquiring(new LockRequest(List.of("r"), LockMode.EXCLUSIVE));
    acquires.enter(c);
    return c;
  }

  void answered(Call c) {
    acquires.answered(c);
    holds.answered();
  }

  void news(long countedAt, long validFor) {
    holds.lease(new Json().with("countedAt", at(countedAt)).with("validFor", d(validFor)));
  }

  /** Not longer than it is, and not more than 30 ms shorter. */
  void validFor(long want, Held h) {
    long got = holds.validFor(h);
    assertTrue(got <= want && got >= want - 30 * MS, got / MS + " ms, want " + want / MS);
  }

  @Test
  void itIsCountedFromTheSidecarsMoment() {
    Held h = grant("a", 9 * S, 0);
    validFor(9 * S, h);
    nano.addAndGet(4 * S);
    validFor(5 * S, h);
    news(now() - 3 * S, 9 * S); // this process was stopped before it read that
    validFor(6 * S, h);
    news(now() - 5 * S, 9 * S); // older news change nothing
    validFor(6 * S, h);
    nano.addAndGet(6 * S);
    assertEquals(0, holds.validFor(h));
    assertEquals("SIDECAR_SILENT", holds.problem(h).lostReason());
    news(now(), 9 * S); // it is not undone
    assertEquals(0, holds.validFor(h));
    assertEquals(List.of("a SIDECAR_SILENT"), told);
  }

  @Test
  void aGrantProlongsNoOtherHold() {
    Held a = grant("a", S / 2, 0);
    Held b = grant("b", 9 * S, 0); // on another lease, say
    validFor(S / 2, a);
    validFor(9 * S, b);
    news(now(), 9 * S);
    validFor(9 * S, a);
  }

  @Test
  void newsProlongOnlyWhatWasHeldThen() {
    news(now(), 9 * S);
    nano.addAndGet(S);
    validFor(S / 2, grant("a", S / 2, 0));
    news(now(), 9 * S); // overtook the next grant
    validFor(9 * S, grant("b", S / 2, 0));
  }

  @Test
  void aSuspendOfTheMachineCounts() {
    Held h = grant("a", 9 * S, 0);
    suspended.addAndGet(8 * S);
    validFor(S, h);
    suspended.addAndGet(S);
    assertEquals("SIDECAR_SILENT", holds.problem(h).lostReason());
  }

  @Test
  void maxHoldIsANearerEnd() {
    Held a = grant("a", 2 * S, 2 * S);
    Held b = grant("b", 9 * S, 0);
    news(now(), 9 * S);
    validFor(2 * S, a);
    validFor(9 * S, b);
    nano.addAndGet(2 * S + 100 * MS);
    assertEquals(0, holds.validFor(a));
    assertNull(holds.problem(a), "the sidecar may still say why");
    holds.lost(lost("a", "MAX_HOLD", 2 * S));
    assertEquals("MAX_HOLD", holds.problem(a).lostReason());
    long grace = holds.problem(a).graceLeft().toNanos();
    assertTrue(grace > 1900 * MS && grace <= 2 * S, "grace " + grace);
    Held c = grant("c", 2 * S, 2 * S);
    nano.addAndGet(2 * S + 300 * MS);
    assertEquals("MAX_HOLD", holds.problem(c).lostReason(), "by this program's own clock");
    assertEquals(List.of("a MAX_HOLD", "c MAX_HOLD"), told);
  }

  @Test
  void theSidecarMaySayWhyWithinHalfItsMargin() {
    opened(100 * MS);
    Held a = grant("a", 9 * S, 2 * S);
    nano.addAndGet(2 * S + 20 * MS);
    assertNull(holds.problem(a));
    nano.addAndGet(50 * MS);
    assertEquals("MAX_HOLD", holds.problem(a).lostReason());
  }

  @Test
  void whoChecksIsToldAtTheEnd() {
    Held a = grant("a", 9 * S, 2 * S);
    assertNull(holds.check(a));
    nano.addAndGet(2 * S + 20 * MS); // this program may have been stopped past the grace
    assertEquals(0, holds.validFor(a));
    assertEquals("MAX_HOLD", holds.check(a).lostReason());
    assertEquals("MAX_HOLD", holds.problem(a).lostReason());
  }

  @Test
  void aLossMayComeBeforeItsGrant() {
    Call other = asks();
    holds.lost(lost("a", "FORCED", 0));
    assertEquals("FORCED", holds.problem(grant("a", 9 * S, 0)).lostReason());
    answered(other);
    assertNull(holds.problem(grant("a", 9 * S, 0)), "that was another time");
  }

  /** What others of the session lose meanwhile does not fill the memory: the oldest are forgotten. */
  @Test
  void soManyLossesAreKeptForTheirGrants() {
    Call other = asks();
    for (int i = 0; i <= 10_000; i++) {
      holds.lost(lost("l" + i, "FORCED", 0));
    }
    assertNull(holds.problem(grant("l0", 9 * S, 0)));
    assertEquals("FORCED", holds.problem(grant("l1", 9 * S, 0)).lostReason());
    assertEquals("FORCED", holds.problem(grant("l10000", 9 * S, 0)).lostReason());
    answered(other);
  }

  @Test
  void aLossOfWhatIsHeldCountsForWhoReentersIt() {
    Held first = grant("a", 9 * S, 0);
    Call other = asks(); // and is granted before the loss
    holds.lost(lost("a", "FORCED", 0));
    Held second = grant("a", 9 * S, 0);
    assertEquals("FORCED", holds.problem(first).lostReason());
    assertEquals("FORCED", holds.problem(second).lostReason());
    answered(other);
  }

  @Test
  void itIsReleasedAsOftenAsItWasGranted() {
    Held h = grant("a", 9 * S, 0);
    assertEquals(h, grant("a", 9 * S, 0));
    holds.left(h);
    validFor(9 * S, h);
    holds.left(h);
    assertEquals(0, holds.validFor(h));
    assertNull(holds.problem(h));
    holds.end("SIDECAR_GONE", "");
    assertNull(holds.problem(h), "what was released is not lost");
  }

  @Test
  void itLooksAtTheNearestEndAndOnceASecond() {
    grant("a", 9 * S, 0);
    assertTrue(holds.looksAt() <= clock.atLeast() + S, "timers stand still in a suspend");
    grant("b", S / 4, 0);
    long at = holds.looksAt();
    assertTrue(at <= clock.atMost() + S / 4, "the nearest");
    nano.addAndGet(S / 2);
    holds.look();
    assertEquals(List.of("b SIDECAR_SILENT"), told);
    assertTrue(holds.looksAt() > at && holds.looksAt() <= clock.atLeast() + S);
    holds.end("SIDECAR_GONE", "");
    holds.look();
    assertEquals(Long.MAX_VALUE, holds.looksAt(), "nothing is held");
  }

  @Test
  void extendReplacesTheLimit() {
    Held h = grant("a", 9 * S, 2 * S);
    nano.addAndGet(S);
    holds.extended(extending(h, 5 * S), new Json().with("countedAt", at(now())).with("validFor", d(9 * S)));
    validFor(5 * S, h);
    holds.extended(extending(h, S), new Json().with("countedAt", at(now())).with("validFor", d(9 * S)));
    validFor(S, h);
  }

  Call extending(Held h, long maxHold) {
    Call c = Call.about(h, "extend", new Json().with("maxHold", d(maxHold)));
    c.sent = clock.atLeast();
    return c;
  }

  /** News that were counted when a hold was over do not bring it back, also where nobody has looked yet. */
  @Test
  void newsProlongNothingThatWasOver() {
    Held h = grant("a", S / 2, 0);
    nano.addAndGet(S);
    news(now(), 9 * S);
    assertEquals("SIDECAR_SILENT", holds.problem(h).lostReason());
  }

  /** This process stood still past the end, and what was said meanwhile is unread: it is taken before anybody is told of a loss. */
  @Test
  void whatStandsUnreadIsNoSilence() {
    List<Function<Held, Boolean>> asks =
        List.of(h -> holds.check(h) == null, h -> holds.problem(h) == null, h -> holds.validFor(h) > 0);
    for (Function<Held, Boolean> ask : asks) {
      Held h = grant("held", 9 * S, 0);
      long counted = now() + 5 * S;
      nano.addAndGet(10 * S);
      holds.catchUpBy(() -> news(counted, 9 * S));
      assertTrue(ask.apply(h));
      validFor(4 * S, h);
      holds.catchUpBy(() -> {});
      nano.addAndGet(5 * S);
      assertFalse(ask.apply(h), "those are over, too");

      h = grant("taken", 9 * S, 0);
      nano.addAndGet(10 * S);
      holds.catchUpBy(() -> holds.lost(lost("taken", "FORCED", 0)));
      assertFalse(ask.apply(h));
      assertEquals("FORCED", holds.problem(h).lostReason());

      h = grant("valid", 9 * S, 0);
      holds.catchUpBy(() -> fail("nothing is to be read for a hold that is not over"));
      assertTrue(ask.apply(h));
    }
  }

  @Test
  void theAnswerToARequestMayTellTheLoss() {
    Held h = grant("a", 9 * S, 0);
    holds.refused(h, SidecarException.of("LOCK_HELD", "", Map.of()));
    assertNull(holds.problem(h));
    holds.refused(h, SidecarException.of("LOCK_LOST", "it was forced", Map.of("lost_reason", "FORCED")));
    assertEquals("FORCED", holds.problem(h).lostReason());
    Held unknown = grant("b", 9 * S, 0);
    holds.refused(unknown, SidecarException.of("NOT_HOLDER", "", Map.of()));
    assertEquals("UNKNOWN", holds.problem(unknown).lostReason());
    assertEquals(List.of("a FORCED", "b UNKNOWN"), told);
  }

  Json lost(String id, String reason, long grace) {
    Json lost = new Json().with("lockId", id).with("resource", "r").with("reason", reason);
    return lost.with("grace", d(grace)).with("countedAt", at(now()));
  }
}
