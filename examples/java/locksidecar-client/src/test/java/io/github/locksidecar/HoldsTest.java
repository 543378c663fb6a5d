package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import locksidecar.v1.Locksidecar.Event;
import locksidecar.v1.Locksidecar.Grant;
import locksidecar.v1.Locksidecar.LeaseNews;
import locksidecar.v1.Locksidecar.Lost;
import locksidecar.v1.Locksidecar.LostReason;
import locksidecar.v1.Locksidecar.OpenSessionResponse;
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
  final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, new Threads("test"));
  final ReentrantLock mu = new ReentrantLock();
  final Holds holds = new Holds(mu, clock, timer, Runnable::run);
  final List<String> told = new ArrayList<>();

  long now() {
    return nano.get() + suspended.get();
  }

  @BeforeEach
  void open() {
    mu.lock(); // no timer looks while a test goes on
    opened(S);
  }

  void opened(long margin) {
    holds.opened(
        clock.atLeast(), OpenSessionResponse.newBuilder().setCountedAt(at(now())).setLeaseMargin(d(margin)).build());
  }

  @AfterEach
  void close() {
    holds.end("", "");
    mu.unlock();
    timer.shutdownNow();
  }

  static Duration d(long nanos) {
    return Duration.newBuilder().setSeconds(nanos / S).setNanos((int) (nanos % S)).build();
  }

  static Duration at(long our) {
    return d(our + AHEAD);
  }

  Held grant(String id, long validFor, long maxHold) {
    Call c = Call.acquiring(maxHold);
    holds.asked();
    c.sent = clock.atLeast();
    Grant g = Grant.newBuilder().setLockId(id).setCountedAt(at(now())).setValidFor(d(validFor)).build();
    Held h = holds.granted(c, g);
    holds.answered();
    holds.listen(h, new Held.Listener(null, () -> told.add(id + " " + holds.problem(h).lostReason())));
    return h;
  }

  void news(long countedAt, long validFor) {
    LeaseNews n = LeaseNews.newBuilder().setCountedAt(at(countedAt)).setValidFor(d(validFor)).build();
    holds.news(Event.newBuilder().setLease(n).build());
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
    holds.news(
        Event.newBuilder().setLost(Lost.newBuilder().setLockId("a").setReason(LostReason.MAX_HOLD).setGrace(d(2 * S)).setCountedAt(at(now()))).build());
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
    Event lost = Event.newBuilder().setLost(Lost.newBuilder().setLockId("a").setReason(LostReason.FORCED)).build();
    holds.asked(); // another thread's acquire is on its way
    holds.news(lost);
    assertEquals("FORCED", holds.problem(grant("a", 9 * S, 0)).lostReason());
    holds.answered();
    assertNull(holds.problem(grant("a", 9 * S, 0)), "that was another time");
  }

  @Test
  void itIsReleasedAsOftenAsItWasGranted() {
    Held h = grant("a", 9 * S, 0);
    assertEquals(h, grant("a", 9 * S, 0));
    holds.released(h);
    validFor(9 * S, h);
    holds.released(h);
    assertEquals(0, holds.validFor(h));
    assertNull(holds.problem(h));
    holds.end("SIDECAR_GONE", "");
    assertNull(holds.problem(h), "what was released is not lost");
  }

  @Test
  void oneTimerLooks() throws Exception {
    for (int i = 0; i < 100; i++) {
      grant("h" + i, 9 * S, 0);
    }
    timer.setRemoveOnCancelPolicy(true);
    assertEquals(1, timer.getQueue().size());
    for (Runnable r : timer.getQueue()) {
      assertTrue(!((Future<?>) r).isDone());
    }
  }
}
