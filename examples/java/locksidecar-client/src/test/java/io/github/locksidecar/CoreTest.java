package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;

/** The protocol: answers, what nobody waits for, time, the end. */
class CoreTest extends CoreScript {
  @Test
  void answersComeInAnyOrder() {
    Call a = acquire(null);
    Call b = acquire(Duration.ZERO);
    assertEquals(
        List.of(
            "{\"requestId\":\"2\",\"acquire\":{\"resource\":\"r\",\"mode\":\"EXCLUSIVE\",\"owner\":\"\"}}",
            "{\"requestId\":\"3\",\"acquire\":{\"resource\":\"r\",\"mode\":\"EXCLUSIVE\",\"owner\":\"\",\"wait\":\"0.000000000s\"}}"),
        sent());
    refuses(core, b, "LOCK_HELD");
    assertFalse(a.answer.isDone());
    assertEquals("LOCK_HELD", reasonOf(b));
    grants(a);
    assertEquals("L2", a.held.id);
    assertTrue(a.answer.isDone());
  }

  @Test
  void whatNobodyWaitsForIsCancelledAndReleased() {
    Call a = acquire(null);
    sent();
    core.abandon(a);
    core.abandon(a); // a second time it does nothing
    assertEquals(List.of("{\"requestId\":\"3\",\"cancel\":{\"requestId\":\"2\"}}"), sent());
    grants(a); // it crossed the cancel
    assertEquals(List.of("{\"requestId\":\"4\",\"release\":{\"lockId\":\"L2\"}}"), sent());
    assertEquals(0, a.held.count);

    Call b = acquire(null);
    sent();
    grants(b);
    core.abandon(b); // whoever waited had left before he heard of it
    assertEquals(List.of("{\"requestId\":\"6\",\"release\":{\"lockId\":\"L5\"}}"), sent());

    Call c = acquire(null);
    sent();
    refuses(core, c, "LOCK_HELD");
    core.abandon(c);
    assertFalse(core.hasOutput(), "there is nothing to leave");
  }

  Call detach(Held h) {
    Call c = Call.about(h, "detach", new Json().with("ttl", "60s"));
    core.post(c);
    sent();
    return c;
  }

  void detached(Call c) {
    says(
        "{'requestId':'" + c.id + "','detached':{'handle':'lsh1_x','resource':'r','mode':'EXCLUSIVE','fence':'7',"
            + "'validFor':'60s','countedAt':'" + now() + "'}}");
  }

  Held granted() {
    Call a = acquire(null);
    sent();
    grants(a);
    return a.held;
  }

  /** Else the lock would be out of reach until its time is over. */
  @Test
  void aHandleThatNobodyWaitsForIsReleased() {
    Held h = granted();
    Call c = detach(h);
    nano.addAndGet(Core.OVERDUE);
    core.look();
    assertEquals("SIDECAR_SILENT", reasonOf(c));
    assertEquals("UNKNOWN", core.holds.problem(h).lostReason());
    detached(c);
    assertEquals(List.of("{\"requestId\":\"4\",\"releaseHandle\":{\"handle\":\"lsh1_x\"}}"), sent());
  }

  @Test
  void whatIsDetachedIsNobodysHold() {
    Held h = granted();
    Call c = detach(h);
    detached(c);
    assertTrue(c.answer.isDone() && h.detached && h.count == 0);
    assertFalse(core.hasOutput());
    nano.addAndGet(100 * S);
    core.look();
    assertNull(core.holds.problem(h), "it cannot be lost");
  }

  @Test
  void refusalsOfDetach() {
    for (String reason : List.of("INVALID_REQUEST", "LIMIT_EXCEEDED", "STORE_UNAVAILABLE")) {
      Held h = granted();
      Call c = detach(h);
      refuses(core, c, reason);
      assertEquals(reason, reasonOf(c));
      assertEquals(reason.equals("STORE_UNAVAILABLE"), core.holds.problem(h) != null, reason);
      assertFalse(h.detached);
    }
  }

  /** Whatever news of the lease say. */
  @Test
  void whatIsAttachedEndsWithItsHandle() {
    Call a = Call.acquiring(LockRequest.attaching("lsh1_x"));
    core.post(a);
    assertEquals(List.of("{\"requestId\":\"2\",\"acquire\":{\"handle\":\"lsh1_x\",\"owner\":\"\",\"wait\":\"0.000000000s\"}}"), sent());
    says(
        "{'requestId':'2','granted':{'lockId':'L2','resource':'r','mode':'EXCLUSIVE','fence':'7','validFor':'20s','count':1,"
            + "'countedAt':'" + now() + "','endsIn':'20s'}}",
        "{'requestId':'','event':{'lease':{'validFor':'90s','countedAt':'" + now() + "'}}}");
    assertTrue(core.holds.validFor(a.held) <= 20 * S);
    Call c = Call.about(a.held, "extend", new Json().with("maxHold", "80s"));
    core.post(c);
    says(
        "{'requestId':'3','extended':{'lockId':'L2','resource':'r','mode':'EXCLUSIVE','fence':'7','validFor':'40s','count':1,"
            + "'countedAt':'" + now() + "','endsIn':'40s'}}");
    long left = core.holds.validFor(a.held);
    assertTrue(left > 20 * S && left <= 40 * S, "extended by its handle meanwhile: " + left);
  }

  /** A grant is sent when its client reads, and its maxHold runs before: the client counts by what the grant says is left. */
  @Test
  void maxHoldOfAGrantThatComesLate() {
    Call a = Call.acquiring(new LockRequest(List.of("r"), LockMode.EXCLUSIVE).lasting(Duration.ofSeconds(60)));
    core.post(a);
    nano.addAndGet(5 * S);
    String late =
        "{'requestId':'%s','%s':{'lockId':'L2','resource':'r','mode':'EXCLUSIVE','fence':'7','validFor':'900s','count':1,"
            + "'countedAt':'%s','endsIn':'%ds'}}";
    says(String.format(late, a.id, "granted", now(), 55));
    assertLeft(55 * S, a.held);
    Call c = Call.about(a.held, "extend", new Json().with("maxHold", "100s"));
    core.post(c);
    nano.addAndGet(5 * S);
    says(String.format(late, c.id, "extended", now(), 95));
    assertLeft(95 * S, a.held);
    nano.addAndGet(95 * S);
    assertEquals("MAX_HOLD", core.holds.check(a.held).lostReason());
    Call over = Call.acquiring(new LockRequest(List.of("s"), LockMode.EXCLUSIVE).lasting(Duration.ofSeconds(60)));
    core.post(over);
    nano.addAndGet(60 * S);
    says(String.format(late, over.id, "granted", now(), 0).replace("L2", "L4"));
    assertEquals("MAX_HOLD", core.holds.check(over.held).lostReason(), "it is over when it comes");
  }

  /** The clock of the machine is known in steps of 10 ms, and an end is rather too early than too late. */
  void assertLeft(long most, Held h) {
    long left = core.holds.validFor(h);
    assertTrue(left <= most && left > most - S, "left: " + left);
  }

  /** The answer to a release may be the first to say that the lock was lost: nobody may rely on it then. */
  @Test
  void theAnswerToAReleaseEndsTheHold() {
    Call a = acquire(null);
    grants(a);
    grants(a); // again, as of one that is reentrant
    Held h = a.held;
    h.count = 2;
    Call r = core.release(h);
    assertNull(core.holds.problem(h));
    refuses(core, r, "LOCK_LOST");
    assertEquals("FORCED", core.holds.problem(h).lostReason());
    assertEquals(0, core.holds.validFor(h));
  }

  @Test
  void answersThatAreOverdueAreGivenUp() {
    Call try1 = acquire(Duration.ZERO);
    Call wait = acquire(Duration.ofSeconds(20));
    Call release = Call.plain("keepAlive", new Json());
    core.post(release);
    sent();
    nano.addAndGet(core.look()); // nobody wakes it: it looks soon enough
    core.look();
    assertFalse(wait.answer.isDone());
    assertEquals("SIDECAR_SILENT", reasonOf(try1));
    assertEquals("SIDECAR_SILENT", reasonOf(release));
    assertTrue(sent().contains("{\"requestId\":\"5\",\"cancel\":{\"requestId\":\"2\"}}"), "what it may get is given back");
    grants(try1);
    assertEquals(List.of("{\"requestId\":\"7\",\"release\":{\"lockId\":\"L2\"}}"), sent());
  }

  /** A wait without an end asks whether the sidecar is there, and does not wait for one that is frozen. */
  @Test
  void whoWaitsAsksWhetherTheSidecarIsThere() {
    Call wait = acquire(null);
    sent();
    long end = nano.get() + 60 * S;
    int asked = 0;
    while (nano.get() < end) {
      long next = core.look();
      if (core.hasOutput()) {
        assertEquals(1, sent().size());
        says("{'requestId':'" + Long.toString(3 + asked++, Character.MAX_RADIX) + "','keptAlive':{'validFor':'0s'}}");
      }
      nano.addAndGet(Math.max(MS, next));
    }
    assertTrue(asked > 9, "it asked " + asked + " times");
    assertFalse(wait.answer.isDone(), "it answers");
    long silent = nano.get();
    while (!wait.answer.isDone()) {
      nano.addAndGet(Math.max(MS, core.look()));
      assertTrue(nano.get() - silent < 20 * S, "it waits for a sidecar that is frozen");
    }
    assertEquals("SIDECAR_SILENT", reasonOf(wait));
  }

  @Test
  void nobodyWhoWaitsIsNotAskedFor() {
    for (int i = 0; i < 20; i++) {
      nano.addAndGet(core.look());
    }
    assertFalse(core.hasOutput());
  }

  @Test
  void aSessionWithATtlIsKeptAlive() {
    core.keepAlive(Duration.ofSeconds(3));
    long start = nano.get();
    for (int i = 0; i < 3; i++) {
      assertFalse(core.hasOutput());
      nano.addAndGet(core.look());
      core.look();
      assertEquals(1, sent().size());
    }
    assertTrue(nano.get() - start <= 3 * S + 10 * MS);
  }

  @Test
  void itsLastWordSaysWhyItEnds() {
    Call a = acquire(null);
    grants(a);
    Call b = acquire(null);
    String drains =
        "{'requestId':'','error':{'code':14,'message':'it stops','details':[{'reason':'DRAINING','domain':'locksidecar','metadata':{}}]}}";
    says(drains, "{'requestId':'" + b.id + "','granted':{}}"); // what follows does not count
    assertEquals("DRAINING", reasonOf(b));
    assertEquals("SIDECAR_GONE", core.holds.problem(a.held).lostReason());
    Call late = acquire(null);
    assertEquals("DRAINING", reasonOf(late));
    assertTrue(late.unsent, "another session will do");
    assertFalse(b.unsent);
  }

  /** What did not reach the sidecar goes to another session; what may have reached it has lost its place in the queue. */
  @Test
  void whatWasNotSentWhenTheSessionEnds() {
    Call sent = acquire(null);
    int bytes = "{\"requestId\":\"1\",\"open\":{}}\n".length() + sent().get(0).length() + 1;
    Call half = acquire(null);
    SidecarException gone = new SidecarUnavailableException("SIDECAR_GONE", "it was killed", null);
    assertTrue(core.end(gone, "SIDECAR_GONE", "it was killed", bytes + 7));
    assertFalse(sent.unsent);
    assertTrue(half.unsent);
    assertEquals("SIDECAR_GONE", reasonOf(half));
  }

  @Test
  void whatIsNoSidecarEndsTheSession() {
    for (String bad : List.of("HTTP/1.1 400 Bad Request", "{'requestId':7}", "{'requestId':'','event':{'lease':{'countedAt':'soon'}}}")) {
      Core other = new Core("/s", clock, Runnable::run, () -> {});
      other.mu.lock();
      byte[] line = (bad.replace('\'', '"') + "\n").getBytes(StandardCharsets.UTF_8);
      other.feed(line, line.length);
      assertEquals("SIDECAR_GONE", other.end().reason());
      assertTrue(other.end().getMessage().contains("is no sidecar"), other.end().getMessage());
      other.mu.unlock();
    }
  }

  @Test
  void eventsAndWhatIsNotKnown() {
    says("{'requestId':'','event':{'lease':{'validFor':'9s','jeopardy':true,'countedAt':'" + now() + "'}}}");
    assertTrue(core.inJeopardy());
    says("{'requestId':'','event':{'draining':{'remaining':'1s','countedAt':'" + now() + "'}}}");
    says("{'requestId':'','event':{'draining':{'remaining':'0s','countedAt':'" + now() + "'}}}");
    assertEquals(1, draining.get());
    says("{'requestId':'','event':{'news of tomorrow':{}}}", "{'requestId':'who','granted':{}}", "{}");
    assertNull(core.end());
  }

  /** Neither the session, nor another hold, nor who waits pays for what there is no thread for. */
  @Test
  void whatThereIsNoThreadForIsToldLater() {
    AtomicBoolean none = new AtomicBoolean(true);
    List<String> told = new ArrayList<>();
    Core core = new Core("/s", clock, Later.over(r -> {
      if (none.get()) {
        throw new OutOfMemoryError("unable to create native thread");
      }
      r.run();
    }), () -> told.add("draining"));
    core.mu.lock();
    try {
      Held[] held = new Held[2];
      for (int i = 0; i < held.length; i++) {
        Call c = Call.acquiring(new LockRequest(List.of("r" + i), LockMode.EXCLUSIVE).waiting(Duration.ofSeconds(1)));
        core.post(c);
        String grant = "{'requestId':'%s','granted':{'lockId':'L%d','resource':'r','mode':'EXCLUSIVE','fence':'7','validFor':'9s','count':1,'countedAt':'%s','parts':[]}}";
        says(core, String.format(grant, c.id, i, now()));
        held[i] = c.held;
        String name = "L" + i;
        core.holds.listen(held[i], new Held.Listener(null, () -> told.add(name)));
      }
      Call waits = Call.acquiring(new LockRequest(List.of("r9"), LockMode.EXCLUSIVE));
      core.post(waits);
      says(core, "{'event':{'lost':{'lockId':'L0','reason':'FORCED','message':'m','grace':'1s','countedAt':'" + now() + "'}}}");
      says(core, "{'event':{'draining':{'remaining':'1s','countedAt':'" + now() + "'}}}");
      assertNull(core.end());
      assertNotNull(held[0].loss);
      assertNull(held[1].loss);
      assertTrue(core.look() <= Core.RETRY);
      assertEquals(List.of(), told);
      none.set(false);
      assertTrue(core.look() > Core.RETRY);
      assertEquals(List.of("L0", "draining"), told);
      none.set(true);
      assertTrue(core.end(new SidecarUnavailableException(Loss.GONE, "gone", null), Loss.GONE, "gone", 0));
      assertTrue(waits.answer.isDone() && held[1].loss != null);
      none.set(false);
      assertTrue(Later.again());
      assertEquals(List.of("L0", "draining", "L1"), told);
    } finally {
      core.mu.unlock();
    }
  }

  @Test
  void aRequestThatIsTooLongIsNotSent() { // it would end the session, and all that it holds
    LockRequest q = new LockRequest(java.util.Collections.nCopies(16, "é".repeat(4096)), LockMode.EXCLUSIVE);
    Call c = Call.acquiring(q);
    core.post(c);
    assertEquals("INVALID_REQUEST", reasonOf(c));
    assertFalse(core.hasOutput());
  }
}
